"""Alignment and its inverse over real arrays, every refusal by name, and that a refusal changes nothing (C1-C5, F5)."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor_svc.layouts.align import (
    check_front_align,
    drop_dead_prefix,
    ensure_uniform_batch_cache_lens,
    front_align,
    front_pad_single,
)
from executor_svc.layouts.normal import NormalSlot
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.rolling import RollingSlot
from executor_svc.layouts.xs_rolling import XsRollingSlot

K, D = 2, 3
ROOT = Path(__file__).parents[4]


def normal(length: int, *, columns: int = 0, seed: int = 0) -> NormalSlot:
    """A slot of `length` random tokens in at least as many columns."""
    columns = max(columns, length)
    rng = np.random.default_rng([seed, length])
    slot = NormalSlot(np.zeros((K, D, columns), np.float32), np.zeros((K, columns, D), np.float32))
    slot.append(
        rng.standard_normal((K, D, length), dtype=np.float32), rng.standard_normal((K, length, D), dtype=np.float32)
    ) if length else None
    return slot


def rolling(length: int) -> RollingSlot:
    slot = RollingSlot(num_kv_heads=K, head_dim=D, window=64)
    slot.append(np.ones((K, D, length), np.float32), np.ones((K, length, D), np.float32))
    return slot


def xs(length: int, *, per_sequence: bool) -> XsRollingSlot:
    slot = XsRollingSlot(lambda rows: rows.mean(0), width=D, compressed_width=D, ratio=4, per_sequence=per_sequence)
    slot.append(np.ones((length, D), np.float32))
    return slot


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8))
@settings(deadline=None)
def test_c1_rows_end_together_behind_zeros_and_come_back(lengths):
    """To the greatest length, end-anchored; dropping the dead prefix gives each row its own columns and its own length again."""
    width, leads = front_align(lengths)
    assert width == max(lengths)
    assert leads.tolist() == [width - length for length in lengths]
    for row, (length, lead) in enumerate(zip(lengths, leads.tolist(), strict=True)):
        own, goal = normal(length, columns=40, seed=row), normal(0, columns=width + 4)
        front_pad_single(own, target=width, into=goal)
        assert goal.length == width
        np.testing.assert_array_equal(goal.values[:, lead:width], own.values[:, :length])
        np.testing.assert_array_equal(goal.keys[:, :, lead:width], own.keys[:, :, :length])
        assert not goal.values[:, :lead].any()
        assert not goal.keys[:, :, :lead].any()
        drop_dead_prefix(goal, lead)
        assert goal.length == length
        np.testing.assert_array_equal(goal.values[:, :length], own.values[:, :length])
        np.testing.assert_array_equal(goal.keys[:, :, :length], own.keys[:, :, :length])


def test_c2_front_pad_refuses_by_name_and_copies_nothing():
    own = normal(8)
    for slot, target, goal, words in (
        (own, 7, normal(0, columns=10), "7 columns are fewer than the 8 live ones of a normal slot"),
        (NormalSlot(), 8, normal(0, columns=10), "a normal slot is not materialised"),
        (own, 8, NormalSlot(), "a normal slot is not materialised"),
        (own, 11, normal(0, columns=10), "column 11 is behind the capacity of 10"),
    ):
        with pytest.raises(CacheRefused, match=words):
            front_pad_single(slot, target=target, into=goal)
        assert goal.length == 0
        assert goal.values is None or not goal.values.any()


def test_c3_drop_dead_prefix_refuses_by_kind_and_reason():
    with pytest.raises(CacheRefused, match="a rolling slot has no dead prefix of 3 columns: it cannot be aligned"):
        drop_dead_prefix(rolling(8), 3)
    for lead in (9, -1):
        with pytest.raises(CacheRefused, match=f"a lead of {lead} is beyond the 8 columns of a normal slot"):
            drop_dead_prefix(normal(8), lead)
    with pytest.raises(CacheRefused, match="not materialised"):
        drop_dead_prefix(NormalSlot(None, None, 8), 3)


def test_c3_nothing_to_drop_is_no_refusal():
    for slot in (normal(8), rolling(8), xs(8, per_sequence=False)):
        drop_dead_prefix(slot, 0)
        assert slot.length == 8
    apart = xs(8, per_sequence=True)
    drop_dead_prefix(apart, 5)
    assert (apart.length, len(apart.comp)) == (8, 2)


def test_dry_check_names_the_first_slot_that_cannot_and_changes_nothing():
    rows = [[normal(8), xs(8, per_sequence=True)], [normal(5), xs(5, per_sequence=True)]]
    check_front_align(rows)
    ensure_uniform_batch_cache_lens(rows[:1])
    for wrong, words in (
        ([[normal(8), rolling(8)], [normal(5), rolling(5)]], "layer 1 has a slot of kind rolling.*row 1 has 5 tokens, row 0 has 8"),
        ([[normal(8), xs(8, per_sequence=False)], [normal(5), xs(5, per_sequence=True)]], "layer 1 has a slot of kind xs_rolling"),
        ([[normal(8), normal(7)], [normal(5), normal(5)]], "row 0 has layers of 7 and 8 tokens"),
        ([[normal(8)], [NormalSlot(None, None, 5)]], "not materialised"),
    ):
        before = [[slot.length for slot in layers] for layers in wrong]
        with pytest.raises(CacheRefused, match=words):
            check_front_align(wrong)
        assert [[slot.length for slot in layers] for layers in wrong] == before
    check_front_align([[normal(8), rolling(8)], [normal(8), rolling(8)]])
    check_front_align([])


def test_uniform_lengths_are_demanded_with_layer_expected_got_and_row():
    ensure_uniform_batch_cache_lens([[normal(8), rolling(8)], [normal(8), rolling(8)]])
    ensure_uniform_batch_cache_lens([])
    with pytest.raises(CacheRefused, match="layer 0: row 1 has 5 tokens where 8 were expected"):
        ensure_uniform_batch_cache_lens([[normal(8)], [normal(5)]])


def test_f5_the_dead_prefix_is_dropped_in_one_place():
    sources = [path.read_text() for room in ("executor_svc", "kernels", "scheduler_svc") for path in (ROOT / room).rglob("*.py")]
    assert sum(len(re.findall(r"def drop_dead_prefix\b", source)) for source in sources) == 1
