"""A cache's own length is the only record of a row: read off real arrays after alignment, strip and rollback (C1, C5, C12, C13)."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor_svc.layouts import dense
from executor_svc.layouts.align import check_front_align
from executor_svc.layouts.cohort import Cohort
from executor_svc.layouts.dense import DenseCaches, Lent
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.rolling import RollingSlot
from executor_svc.plan import ALIGNED, CACHE_IN, CACHE_NOTHING, CACHE_RESET, STRIPPED
from tests.support.dense_world import DIM, HEADS, ToyV4, batch_of, dense_caches, live_tokens, write


def fill(caches: DenseCaches, lengths: dict[int, int], *, layout: int) -> None:
    """Each slot's prompt as a step of its own; token i of slot s is the number 1000 s + i + 1."""
    for slot, length in lengths.items():
        batch = batch_of([slot], starts=[0], fed=length, layout=layout, op=CACHE_RESET)
        write(caches.begin(batch), 1000 * slot + np.arange(1, length + 1))
        caches.end(batch)


def verify(caches: DenseCaches, slots: list[int], *, committed: list[int], fed: int = 4) -> None:
    """One step that feeds `fed` tokens a row and keeps `committed` of them, as a verify step would."""
    starts = [caches.length(slot) for slot in slots]
    batch = batch_of(slots, starts=starts, fed=fed, layout=STRIPPED, op=CACHE_IN)
    tokens = [1000 * slot + start + i + 1 for slot, start in zip(slots, starts, strict=True) for i in range(fed)]
    write(caches.begin(batch), np.array(tokens))
    caches.end(batch, committed=np.array(committed, np.int32))


@pytest.mark.parametrize("num_steps", [1, 6, 12])
def test_c13_the_scheduler_reads_each_row_s_own_length_not_the_padded_one(num_steps, monkeypatch):
    """Rows commit 3 and 1 from a separation of 3: the spread grows by 2 a step. Were the padded length taken for the row's own,
    every step would erase the separation it started from, and the key would look healthy.
    """
    spreads = []
    for strip in (True, False):
        if not strip:
            monkeypatch.setattr(dense, "drop_dead_prefix", lambda slot, lead: None)
        caches = dense_caches()
        fill(caches, {0: 8, 1: 5}, layout=STRIPPED)
        for _ in range(num_steps):
            verify(caches, [0, 1], committed=[3, 1])
        spreads.append(caches.length(0) - caches.length(1))
        if strip:
            assert [live_tokens(part) for part in caches._own[1]] == [[1000.0 + i + 1 for i in range(5 + num_steps)]] * 2
    assert spreads == [3 + 2 * num_steps, 2]


@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=8), st.permutations([0, 1, 2]))
@settings(max_examples=40, deadline=None)
def test_every_row_keeps_exactly_what_it_committed(steps, order):
    """Any commits, any order of rows, which changes from step to step: content and length of every layer are the row's own."""
    caches, lengths = dense_caches(), {0: 3, 1: 40, 2: 17}
    fill(caches, lengths, layout=STRIPPED)
    for index, commits in enumerate(steps):
        rows = order if index % 2 else order[::-1]
        verify(caches, rows, committed=[commits[slot] for slot in rows])
    for slot, length in lengths.items():
        own = length + sum(commits[slot] for commits in steps)
        assert caches.length(slot) == own
        entry = caches._own[slot]
        parts = entry.take() if isinstance(entry, Lent) else entry
        assert [live_tokens(part) for part in parts] == [[1000.0 * slot + i + 1 for i in range(own)]] * 2


def test_an_aligned_cohort_moves_its_rows_alike_or_refuses():
    caches = dense_caches()
    fill(caches, {0: 8, 1: 5}, layout=ALIGNED)
    batch = batch_of([0, 1], starts=[8, 5], fed=4, layout=ALIGNED, op=CACHE_IN)
    write(caches.begin(batch), np.arange(8))
    with pytest.raises(CacheRefused, match="LAYOUT_ALIGNED moves its rows alike; they kept 1 to 3 tokens"):
        caches.end(batch, committed=np.array([3, 1], np.int32))
    caches.end(batch, committed=np.array([2, 2], np.int32))
    assert [caches.length(0), caches.length(1)] == [10, 7]
    assert caches.cohort.width == 10


def test_a_plan_that_disagrees_with_the_cache_is_refused():
    caches = dense_caches()
    fill(caches, {0: 8, 1: 5}, layout=ALIGNED)
    with pytest.raises(CacheRefused, match="the cache of slot 1 holds 5 tokens, its row starts at 6"):
        caches.begin(batch_of([0, 1], starts=[8, 6], fed=1, layout=ALIGNED, op=CACHE_IN))
    with pytest.raises(CacheRefused, match="starts at 16, but no cache of its own holds"):
        dense_caches_with_blocks().begin(batch_of([4], starts=[16], fed=1, layout=ALIGNED, op=CACHE_IN))
    with pytest.raises(CacheRefused, match="no cohort stands"):
        dense_caches().begin(batch_of([0], starts=[0], fed=1, layout=ALIGNED, op=CACHE_NOTHING))


def dense_caches_with_blocks() -> DenseCaches:
    caches = dense_caches()
    caches._blocks = SimpleNamespace(keys=[], values=[])
    return caches


def test_a_slot_that_was_left_holds_nothing():
    caches = dense_caches()
    fill(caches, {0: 8, 1: 5}, layout=ALIGNED)
    batch = batch_of([1], starts=[5], fed=1, layout=ALIGNED, op=CACHE_IN, left=(0,))
    write(caches.begin(batch), np.array([1006.0]))
    caches.end(batch)
    assert [caches.length(0), caches.length(1)] == [0, 6]
    caches.tidy(batch_of([], starts=[], fed=0, layout=ALIGNED, op=CACHE_RESET, left=(1,)))
    assert caches.length(1) == 0
    assert caches.cohort is None


def rolling_caches() -> DenseCaches:
    def slots():
        return [*dense_caches()._make_slots(), RollingSlot(num_kv_heads=HEADS, head_dim=DIM, window=8)]

    return dense_caches(slots, layers=3)


def test_c5_a_rolling_slot_behind_a_dead_prefix_is_refused_at_in_and_at_the_strip():
    """Both ways of dropping a prefix share one implementation, and both refuse: nothing is skipped in silence."""
    caches = rolling_caches()
    rows = [caches._make_slots() for _ in range(2)]
    for row, length in zip(rows, (8, 5), strict=True):
        row[0] = row[1] = dense_normal(length)
        row[2].append(np.ones((HEADS, DIM, length), np.float32), np.ones((HEADS, length, DIM), np.float32))
    with pytest.raises(CacheRefused, match="layer 2 has a slot of kind rolling, which cannot have a length per sequence"):
        check_front_align(rows)
    cohort = Cohort.join([rows[0], rows[0]], members=np.array([0, 1], np.int32), room=4, granted=True, shape=caches._shape)
    cohort.lead[1] = 3
    with pytest.raises(CacheRefused, match="a rolling slot has no dead prefix of 3 columns"):
        Lent(cohort, 1).take()
    caches._own = {0: Lent(cohort, 0), 1: Lent(cohort, 1)}
    with pytest.raises(CacheRefused, match="a rolling slot has no dead prefix of 3 columns"):
        caches._strip(np.array([0, 1], np.int32), np.zeros(2, np.int32))
    with pytest.raises(CacheRefused, match="a rolling slot has no dead prefix of 3 columns"):
        caches.begin(batch_of([0, 1], starts=[8, 5], fed=1, layout=ALIGNED, op=CACHE_IN))


def dense_normal(length: int):
    caches = dense_caches()
    fill(caches, {0: length}, layout=ALIGNED)
    return caches._own[0].take()[0]


PROMPTS = [[3, 9, 27], [5] * 20, list(range(1, 34)), [7]]


def toy_alone(prompt: list[int], *, num_tokens: int) -> list[int]:
    toy = ToyV4(per_sequence=False)
    caches, out, tokens, start, op = toy.caches(), [], prompt, 0, CACHE_RESET
    for _ in range(num_tokens):
        batch = batch_of([0], starts=[start], fed=len(tokens), layout=ALIGNED, op=op)
        out.append(toy.step(caches, batch, [tokens])[0][-1])
        caches.end(batch)
        start, tokens, op = start + len(tokens), out[-1:], CACHE_NOTHING
    return out


@pytest.mark.parametrize("layout", [ALIGNED, STRIPPED])
def test_c12_xs_rolling_rows_of_unequal_length_share_a_cohort_once_the_switch_is_on(layout):
    """The toy's greedy tokens equal B=1; its xs layer comes last and does not overwrite the lead that the normal layer has (C1)."""
    toy = ToyV4(per_sequence=True)
    caches, last = toy.caches(), []
    for slot, prompt in enumerate(PROMPTS):
        batch = batch_of([slot], starts=[0], fed=len(prompt), layout=layout, op=CACHE_RESET)
        last.append(toy.step(caches, batch, [prompt])[0][-1])
        caches.end(batch)
    outputs, slots = [[token] for token in last], list(range(len(PROMPTS)))
    for step in range(8):
        starts = [caches.length(slot) for slot in slots]
        op = CACHE_IN if layout == STRIPPED or not step else CACHE_NOTHING
        batch = batch_of(slots, starts=starts, fed=1, layout=layout, op=op)
        for output, tokens in zip(outputs, toy.step(caches, batch, [output[-1:] for output in outputs]), strict=True):
            output += tokens
        if not step:
            assert caches.lead_pad.tolist() == [30, 13, 0, 32]
        caches.end(batch)
    assert outputs == [toy_alone(prompt, num_tokens=9) for prompt in PROMPTS]


def test_c12_with_the_switch_off_unequal_xs_rows_are_refused_by_layer_and_kind():
    toy = ToyV4(per_sequence=False)
    caches = toy.caches()
    for slot, prompt in enumerate(PROMPTS[:2]):
        batch = batch_of([slot], starts=[0], fed=len(prompt), layout=ALIGNED, op=CACHE_RESET)
        toy.step(caches, batch, [prompt])
        caches.end(batch)
    with pytest.raises(CacheRefused, match="layer 1 has a slot of kind xs_rolling, which cannot have a length per sequence"):
        caches.begin(batch_of([0, 1], starts=[3, 20], fed=1, layout=ALIGNED, op=CACHE_IN))
    assert [caches.length(0), caches.length(1)] == [3, 20]


def test_c12_a_rejected_draft_leaves_no_trace_in_an_xs_slot():
    """Feed four, keep one: window and pool go on as if the other three had never come."""
    toy, other = ToyV4(per_sequence=True), ToyV4(per_sequence=True)
    results = []
    for world, fed, kept in ((toy, [1, 50, 51, 52], 1), (other, [1], 1)):
        caches = world.caches()
        batch = batch_of([0], starts=[0], fed=19, layout=STRIPPED, op=CACHE_RESET)
        world.step(caches, batch, [list(range(19))])
        caches.end(batch)
        batch = batch_of([0], starts=[19], fed=len(fed), layout=STRIPPED, op=CACHE_IN)
        world.step(caches, batch, [fed])
        caches.end(batch, committed=np.array([kept], np.int32))
        assert caches.length(0) == 20
        batch = batch_of([0], starts=[20], fed=5, layout=STRIPPED, op=CACHE_IN)
        results.append(world.step(caches, batch, [[2, 4, 6, 8, 10]]))
    assert results[0] == results[1]
