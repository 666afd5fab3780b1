"""Gemma 3 in the dense layouts: five of six layers keep a rolling window, whose rows share one length (C11, C14, C15, C16)."""

import numpy as np
import pytest

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.plan import ALIGNED, CACHE_IN, CACHE_NOTHING
from tests.support import tiny_models
from tests.support.batches import Driver
from tests.support.dense_batches import LAYOUTS, DenseDriver

W = tiny_models.GEMMA3_WINDOW
LENGTHS = (W - 1, W, W + 1, 2 * W)
NUM_TOKENS = 36
"""From 2 W on the slot of W + 64 columns has rolled by then; the shortest prompt crosses W and 2 W."""


def prompt_of(length: int, *, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(2, tiny_models.VOCAB_SIZE, length).tolist()


PROMPTS = [prompt_of(length, seed=seed) for length in LENGTHS for seed in (1, 2)]
"""Two of each length: a bucket has rows."""


@pytest.fixture(scope="module", params=["float32", "float16"])
def backend(tmp_path_factory, request):
    folder = tiny_models.save(tiny_models.make(tiny_models.gemma3_config()), tmp_path_factory.mktemp("gemma3") / "tiny")
    told = {"precision": "f32", "kv_cache_dtype": request.param, "num_blocks": 160, "num_threads": 1}
    return CpuBackend(ExecutorSettings(model=str(folder), **told))


@pytest.fixture(scope="module")
def alone(backend) -> list[list[int]]:
    """What each prompt is continued with when nobody else is there."""
    driver = Driver(backend)
    rows = [driver.add(prompt) for prompt in PROMPTS]
    for row in rows:
        driver.generate([row], num_tokens=NUM_TOKENS)
        driver.release(row)
    return [row.output for row in rows]


def test_c14_blocks_take_rows_on_both_sides_of_the_window_together(backend, alone):
    driver = Driver(backend)
    rows = [driver.add(prompt) for prompt in PROMPTS]
    driver.generate(rows, num_tokens=NUM_TOKENS)
    assert [row.output for row in rows] == alone


@pytest.mark.parametrize("name", LAYOUTS)
def test_c14_buckets_across_the_window_edge_say_what_each_row_says_alone(backend, alone, name):
    """Nothing granted: one length a step, in turns, as the historical rule has it."""
    driver = DenseDriver(backend, layout=LAYOUTS[name], granted=False)
    rows = [driver.add(prompt) for prompt in PROMPTS]
    driver.prompts(rows)
    buckets = [rows[first : first + 2] for first in range(0, len(rows), 2)]
    for turn in range(0, NUM_TOKENS - 1, 7):
        for bucket in buckets:
            for _ in range(min(7, NUM_TOKENS - 1 - turn)):
                driver.decode(bucket)
    assert [row.output for row in rows] == alone
    slots = backend._dense.cohort.own(0)
    assert [str(slot.kind) for slot in slots] == ["rolling"] * 5 + ["normal", "rolling"]
    assert slots[0].dropped > 0
    assert {slot.length for slot in slots} == {2 * W + NUM_TOKENS - 1}
    copies = [step.copies.cache_in for step in driver.steps if step.copies.cache_in]
    assert set(copies) == {2 * 1 * 2}  # keys and values of two rows in the one layer that sees everything


def test_the_slots_hold_the_digits_of_the_blocks(backend):
    driver, dense = Driver(backend), DenseDriver(backend, layout=ALIGNED, granted=False)
    prompt = prompt_of(300)
    ours, theirs = driver.add(prompt), dense.add(prompt)
    driver.run([(ours, 300)])
    dense.free = driver.free
    dense.prompts([theirs])
    for _ in range(3):
        want = driver.run([(ours, 1)], want_digests=True).digest.tolist()
        assert dense.decode([theirs], want_digests=True).digest.tolist() == want


@pytest.mark.parametrize("cached", [16, 48, 96])
def test_c15_a_prefix_hit_fills_a_rolling_slot_as_far_back_as_its_window(backend, cached):
    """Blocks that a dense row filled, hit by a dense row and by a paged one, within the window and behind it."""
    story = prompt_of(100)
    driver = DenseDriver(backend, layout=ALIGNED, granted=False)
    first = driver.add(story[:70])
    driver.prompts([first])
    while len(first.tokens) < 100:
        first.tokens[-1] = story[len(first.tokens) - 1]
        driver.decode([first])
    first.tokens[-1] = story[99]
    hit, reader = driver.add(story, shared=first, cached=cached), Driver(backend)
    driver.prompts([hit])
    for _ in range(3):
        driver.decode([hit])
    reader.free = driver.free
    paged, fresh = reader.add(story, shared=first, cached=cached), reader.add(story)
    reader.generate([paged, fresh], num_tokens=4)
    assert hit.output == paged.output == fresh.output


def test_c11_rows_of_other_lengths_are_refused_by_the_kind_of_the_first_layer_that_cannot(backend):
    """By the declaration at the handshake, and again by the cache, which changes nothing."""
    declared = backend.pipeline.ragged_batch_admission()
    assert not declared.granted
    assert declared.reason == "gemma3: cache slot 0 is of kind rolling, which cannot have a length per sequence"
    driver = DenseDriver(backend, layout=ALIGNED, granted=True)
    long, short = driver.add(PROMPTS[-1]), driver.add(PROMPTS[0])
    driver.prompts([long, short])
    with pytest.raises(CacheRefused, match="layer 0 has a slot of kind rolling, which cannot have a length per sequence; row 1"):
        driver.step([(long, 1), (short, 1)], op=CACHE_IN)
    assert [backend._dense.length(driver.slot(row)) for row in (long, short)] == [2 * W, W - 1]
    driver.step([(long, 1)], op=CACHE_IN)
    driver.step([(long, 1)], op=CACHE_NOTHING)
    straight = Driver(backend)
    straight.free = driver.free
    want = straight.add(PROMPTS[-1])
    straight.generate([want], num_tokens=3)
    assert long.output == want.output


def test_c11_a_rolled_window_refuses_to_forget_one_row_s_tokens(backend):
    """What a rejected draft would ask for: STRIPPED, one row keeps none of the token that it fed."""
    driver = DenseDriver(backend, layout=LAYOUTS["stripped"], granted=False)
    rows = [driver.add(prompt_of(208, seed=seed)) for seed in (1, 2)]
    driver.prompts(rows)
    driver.decode(rows)
    driver._op = CACHE_IN
    batch = driver.batch([(row, 1) for row in rows])
    backend._decoder.hidden(batch, cache=backend._dense)
    with pytest.raises(CacheRefused, match="rolling slot cannot go from 210 to 209 tokens: its window of 32 has dropped the first"):
        backend._dense.end(batch, committed=np.array([1, 0], np.int32))
