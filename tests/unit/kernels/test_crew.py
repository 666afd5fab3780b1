"""Helpers of a kernel: they come when there is work, nobody waits for one who does not, and each item is done once."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu import crew
from kernels.cpu.atomics import fetch_add
from kernels.cpu.crew import Crew, helpers, set_num_threads, together
from kernels.cpu.integer_linear import integer_linear, packed
from kernels.cpu.jit import jit
from kernels.cpu.team import new_team, take
from kernels.group_weights import rounded


@jit
def _count(team, members, values, work):
    """Adds 1 to each value, and takes its time about it: numbers that the compiler cannot know."""
    fetch_add(members, 0, 1)
    i = take(team, 0)
    while i < values.shape[0]:
        x = float(i)
        for _ in range(work):
            x = x * 0.5 + 1.0
        if x >= 0:
            values[i] += 1
        i = take(team, 0)


@jit
def count(board, most, *args):
    together(board, most, _count, args)


@jit
def _fail(members, values):
    fetch_add(members, 0, 1)
    if values[0] == 0:
        raise ValueError("nothing was taken")


@jit
def fail(board, most, *args):
    together(board, most, _fail, args)


def run(board, most, *, size, work=0):
    """(how many threads took part, the values)"""
    members, values = np.zeros(1, np.int64), np.zeros(size)
    count(board, most, new_team(1), members, values, work)
    return int(members[0]), values


def helped(board, most):
    """Whether a helper comes before long: where others keep the processors busy, one may be late for many postings."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if run(board, most, size=200, work=20_000)[0] > 1:
            return True
    return False


@pytest.fixture
def three_threads():
    before = crew.num_threads()
    set_num_threads(3)
    yield
    set_num_threads(before)


def test_a_helper_that_sleeps_is_woken_and_takes_part(three_threads):
    for pause_s in (0.0, 0.05):
        time.sleep(pause_s)
        assert helped(*helpers(worth_it=True))


def test_each_item_is_done_once_however_small_and_often(three_threads):
    for size in [0, 1, 2, 7, 1000] * 400:
        _, values = run(*helpers(worth_it=True), size=size)
        np.testing.assert_array_equal(values, np.ones(size))


def test_nobody_waits_for_a_helper_that_does_not_come():
    """A board without helpers: as if the system ran none of them."""
    members, values = run(Crew().board, 5, size=100)
    assert members == 1
    np.testing.assert_array_equal(values, np.ones(100))


def test_no_more_helpers_come_than_the_caller_wants(three_threads):
    board, _ = helpers(worth_it=True)
    assert max(run(board, 1, size=200, work=20_000)[0] for _ in range(20)) <= 2
    assert run(board, 0, size=200, work=20_000)[0] == 1
    assert helpers(worth_it=False)[1] == 0


def test_callers_at_the_same_time_do_not_mix_their_work():
    """One has the board, the others work alone. Arrays end with their call: a late helper would write into freed memory."""
    rng = np.random.default_rng(3)
    weights = packed(rounded(rng.standard_normal((512, 256)).astype(np.float32)))
    inputs = [rng.standard_normal((130, 256)).astype(np.float32) for _ in range(4)]
    wanted = [product(x, weights) for x in inputs]
    wrong = []

    def call(i):
        set_num_threads(3)
        wrong.extend(i for _ in range(60) if not np.array_equal(product(inputs[i], weights), wanted[i]))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def product(x, weights):
    out = np.full((len(x), weights.num_out), np.nan, np.float32)
    integer_linear(x, weights=weights, out_MN=out)
    return out


def test_what_a_kernel_raises_reaches_the_caller_and_leaves_the_board_free(three_threads):
    board, most = helpers(worth_it=True)
    for _ in range(50):
        with pytest.raises(MemoryError, match="scratch"):
            fail(board, most, np.zeros(1, np.int64), np.zeros(1))
    with pytest.raises(ValueError, match="nothing"):
        fail(board, 0, np.zeros(1, np.int64), np.zeros(1))
    assert helped(board, most)


def test_a_process_ends_while_helpers_sleep_or_look_for_work():
    code = """
import numpy as np
from kernels.cpu.crew import set_num_threads
from kernels.cpu.gated_mul import silu_mul
set_num_threads(4)
for _ in range(20):
    silu_mul(np.zeros((256, 2048), np.float32), out_TI=np.zeros((256, 1024), np.float32))
"""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=100, cwd=Path(__file__).parents[3])


@pytest.mark.skipif(sys.platform != "linux", reason="threads are placed on Linux only")
def test_a_helper_leaves_its_callers_processor(three_threads):
    """Two threads on one processor take turns, and the other one idles."""
    from kernels.cpu.placement import allowed, avoid, processor

    @jit
    def moved(mask, scratch):
        before = processor()
        avoid(before, mask, scratch)
        return before, processor()

    mask = allowed()
    num_allowed = sum(bin(word & (2**64 - 1)).count("1") for word in mask.tolist())
    seen = []

    def move():
        seen.extend(moved(mask, np.empty_like(mask)) for _ in range(10))

    thread = threading.Thread(target=move)
    thread.start()
    thread.join(60)
    assert len(seen) == 10
    if num_allowed > 1:
        assert all(before != after for before, after in seen)
