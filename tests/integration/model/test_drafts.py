"""Output with drafts equals output without, token for token, on the real model: whatever is guessed, at any depth and batch size.

Rows D1, D2 and D8 of domain.md.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.drafts.ngram import NgramDrafter
from executor_svc.plan import FINISH_LENGTH, FINISH_STOP, Sampling
from tests.support.drafted import KnowingDrafter, run
from tests.support.parity import FIXTURE

CASES = json.loads(FIXTURE.read_text())
PROMPTS = [case["prompt_ids"][: 12 + 3 * index] for index, case in enumerate(CASES)][:12]
WAYS = [
    Sampling(max_tokens=18, ignore_eos=True),
    Sampling(max_tokens=20, ignore_eos=True, temperature=0.8, top_p=0.9, seed=7),
    Sampling(max_tokens=14, temperature=1.0, top_k=40, repetition_penalty=1.3, presence_penalty=0.4, seed=11, logprobs=True),
    Sampling(max_tokens=16, min_tokens=6, stop_token_ids=tuple(range(28, 92)), temperature=1.2, frequency_penalty=0.7, seed=3),
    Sampling(max_tokens=1, temperature=0.7, seed=5),
]


@pytest.fixture(scope="module", params=["int8", "int8-groups", "f32"])
def backend(request):
    backend = CpuBackend(ExecutorSettings(precision=request.param, max_model_len=256, num_blocks=256, max_num_seqs=64))
    yield backend
    backend.close()


def rows(count: int) -> tuple[list[list[int]], list[Sampling]]:
    prompts = [PROMPTS[index % len(PROMPTS)] for index in range(count)]
    return prompts, [replace(WAYS[index % len(WAYS)], seed=1000 + index) for index in range(count)]


@pytest.fixture(scope="module")
def plain(backend):
    """Each row alone, without drafts."""
    return [run(backend, [prompt], [sampling])[0] for prompt, sampling in zip(*rows(32), strict=True)]


@pytest.mark.parametrize(("count", "depth"), [(1, 1), (1, 3), (8, 2), (8, 4), (32, 1), (32, 3)])
def test_d1_b019_b043_b044_b072_b073_guesses_that_are_right_seven_times_of_ten_change_nothing(backend, plain, count, depth):
    drafter = KnowingDrafter([out.tokens for out in plain], luck=0.7, seed=depth)
    drafted = run(backend, *rows(count), drafter=drafter, depth=depth)
    for got, expected in zip(drafted, plain, strict=False):
        assert (got.tokens, got.reason, got.logprobs) == (expected.tokens, expected.reason, expected.logprobs)
        assert got.num_accepted <= got.num_drafted
        assert got.num_accepted == len(got.tokens) - got.num_steps
    assert sum(out.num_accepted for out in drafted) > 0.3 * sum(out.num_drafted for out in drafted) > 0


@pytest.mark.parametrize(("count", "depth"), [(1, 3), (8, 1), (8, 4), (32, 3)])
def test_d2_rows_that_move_by_the_slowest_say_the_same_in_more_steps(backend, plain, count, depth):
    """COHORT: who is ahead feeds again what the others have not caught up on, and drafts less the further it is."""
    drafters = [KnowingDrafter([out.tokens for out in plain], luck=0.7, seed=depth) for _ in range(2)]
    together = run(backend, *rows(count), drafter=drafters[0], depth=depth, together=True)
    for got, expected in zip(together, plain, strict=False):
        assert (got.tokens, got.reason, got.logprobs) == (expected.tokens, expected.reason, expected.logprobs)
    alone = run(backend, *rows(count), drafter=drafters[1], depth=depth)
    steps = [sum(out.num_steps for out in outputs) for outputs in (together, alone)]
    assert steps[0] == steps[1] if count == 1 else steps[0] > 1.05 * steps[1]


@pytest.mark.parametrize("luck", [0.0, 1.0])
def test_d1_always_wrong_costs_steps_and_always_right_saves_them(backend, plain, luck):
    drafter = KnowingDrafter([out.tokens for out in plain], luck=luck)
    drafted = run(backend, *rows(8), drafter=drafter, depth=3)
    assert [out.tokens for out in drafted] == [out.tokens for out in plain[:8]]
    for out in drafted:
        needed = -(-(len(out.tokens) - 1) // 4) if luck else len(out.tokens) - 1
        assert out.num_steps == 1 + needed


def test_d1_b074_a_drafter_of_the_rows_own_text_changes_nothing(backend, plain):
    repeating = [[*PROMPTS[0], *PROMPTS[0], *PROMPTS[0][:5]], [*PROMPTS[1][:9]] * 3]
    sampling = [Sampling(max_tokens=40, ignore_eos=True)] * 2
    expected = [run(backend, [prompt], sampling[:1])[0] for prompt in repeating]
    drafted = run(backend, repeating, sampling, drafter=NgramDrafter(), depth=4)
    assert [out.tokens for out in drafted] == [out.tokens for out in expected]
    assert sum(out.num_accepted for out in drafted) > 0


def test_b012_an_end_in_the_middle_of_right_drafts_ends_the_row_there(backend):
    """Field reports: tokens behind an end token were emitted because they had been accepted."""
    sampling = Sampling(max_tokens=20, ignore_eos=True)
    [free] = run(backend, PROMPTS[:1], [sampling])
    end = next(token for token in free.tokens[3:] if free.tokens.index(token) >= 3)
    stopped = replace(sampling, stop_token_ids=(end,))
    [expected] = run(backend, PROMPTS[:1], [stopped])
    [got] = run(backend, PROMPTS[:1], [stopped], drafter=KnowingDrafter([free.tokens], luck=1.0), depth=8)
    assert (got.tokens, got.reason) == (expected.tokens, expected.reason)
    assert (got.reason, got.tokens[-1]) == (FINISH_STOP, end)


def test_b035_drafts_never_run_past_max_tokens_or_the_context(backend):
    long = (PROMPTS[0] * 60)[:245]
    for prompt, sampling in (
        (PROMPTS[0], Sampling(max_tokens=7, ignore_eos=True)),
        (long, Sampling(max_tokens=99, ignore_eos=True)),
    ):
        [expected] = run(backend, [prompt], [sampling])
        drafter = KnowingDrafter([[*expected.tokens, *range(9)]], luck=1.0)
        [got] = run(backend, [prompt], [sampling], drafter=drafter, depth=8)
        assert (got.tokens, got.reason) == (expected.tokens, FINISH_LENGTH)
        assert got.num_steps == 2 or len(got.tokens) == 11
    assert len(long) + len(got.tokens) == 256


def test_the_rows_differ_so_that_equality_says_something(plain):
    assert len({tuple(out.tokens) for out in plain}) > 20
    assert len({out.reason for out in plain}) == 2
    assert np.mean([len(out.tokens) for out in plain]) > 8
