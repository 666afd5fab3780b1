"""What each slot kind can do and what it refuses by name (C11, C12, C16)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_svc.layouts.normal import NormalSlot
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.rolling import RollingSlot
from executor_svc.layouts.slot_kinds import SlotKind
from executor_svc.layouts.xs_rolling import TAIL_MARGIN, XsRollingSlot

RNG = np.random.default_rng(5)
K, D = 2, 3


def tokens(positions) -> tuple[np.ndarray, np.ndarray]:
    """(keys [K, D, t], values [K, t, D]) that carry their positions."""
    run = np.array(list(positions), np.float32)
    return np.broadcast_to(run, (K, D, len(run))), np.broadcast_to(run[:, None], (K, len(run), D))


def normal(columns: int = 32) -> NormalSlot:
    return NormalSlot(np.zeros((K, D, columns), np.float32), np.zeros((K, columns, D), np.float32))


def rolling(window: int = 10, slack: int = 32) -> RollingSlot:
    return RollingSlot(num_kv_heads=K, head_dim=D, window=window, slack=slack)


def mean(rows):
    return rows.mean(0)


def xs(*, ratio: int = 4, span: int = 2, per_sequence: bool = True) -> XsRollingSlot:
    return XsRollingSlot(mean, width=D, compressed_width=D, ratio=ratio, span=span, per_sequence=per_sequence)


def test_c16_every_kind_says_its_name_and_whether_rows_may_differ():
    said = [
        (slot.kind, slot.supports_per_sequence_len) for slot in (normal(), rolling(), xs(per_sequence=True), xs(per_sequence=False))
    ]
    assert said == [
        (SlotKind.NORMAL, True),
        (SlotKind.ROLLING, False),
        (SlotKind.XS_ROLLING, True),
        (SlotKind.XS_ROLLING, False),
    ]
    assert [str(kind) for kind in SlotKind] == ["normal", "rolling", "xs_rolling"]


def test_normal_slot_takes_any_length_within_its_columns():
    slot = normal(32)
    slot.append(*tokens(range(20)))
    slot.set_len(5)
    slot.append(*tokens([5, 6]))
    assert slot.length == 7
    np.testing.assert_array_equal(slot.values[0, :7, 0], range(7))
    slot.set_len(32)
    for wrong in (-1, 33):
        with pytest.raises(CacheRefused, match=f"normal slot of 32 columns has no length {wrong}"):
            slot.set_len(wrong)
    with pytest.raises(CacheRefused, match="cannot take column 33"):
        slot.append(*tokens([1]))
    assert slot.length == 32


def test_a_normal_slot_without_columns_says_so():
    with pytest.raises(CacheRefused, match="not materialised"):
        NormalSlot().arrays()


@given(st.lists(st.integers(1, 20), min_size=1, max_size=40), st.integers(1, 40))
def test_a_rolling_slot_always_holds_its_window(chunks, window):
    slot = rolling(window, slack=40)
    for count in chunks:
        slot.append(*tokens(range(slot.length, slot.length + count)))
        assert slot.length == slot.dropped + slot.write_pos
        assert slot.dropped % 16 == 0
        first = max(0, slot.length - window)
        assert slot.dropped <= first
        columns = slice(first - slot.dropped, slot.write_pos)
        np.testing.assert_array_equal(slot.values[0, columns, 0], range(first, slot.length))
        np.testing.assert_array_equal(slot.keys[1, 2, columns], range(first, slot.length))
    assert slot.length == sum(chunks)


def test_a_rolling_slot_cannot_go_back_once_it_has_dropped_tokens():
    slot = rolling(10, slack=32)
    slot.append(*tokens(range(30)))
    slot.set_len(25)
    slot.append(*tokens(range(25, 32)))
    assert (slot.length, slot.dropped) == (32, 0)
    for position in range(32, 60):
        slot.append(*tokens([position]))
    assert slot.dropped
    slot.set_len(slot.length)
    with pytest.raises(CacheRefused, match="rolling slot cannot go from 60 to 59 tokens: its window of 10 has dropped"):
        slot.set_len(59)
    assert slot.length == 60


def test_a_rolling_slot_has_more_columns_only_while_a_long_chunk_lies_in_it():
    slot = rolling(10, slack=32)
    usual = slot.values.shape[1]
    slot.append(*tokens(range(200)))
    assert (slot.length, slot.dropped, slot.values.shape[1]) == (200, 0, 208)
    for position in range(200, 210):
        slot.append(*tokens([position]))
    assert (slot.length, slot.dropped, slot.values.shape[1]) == (210, 192, usual)


def test_a_rolling_slot_needs_slack_for_whole_tiles():
    with pytest.raises(ValueError, match="slack"):
        rolling(10, slack=8)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.sampled_from([2, 4]), st.integers(1, 3))
def test_c12_xs_rows_are_those_of_the_whole_history(chunks, ratio, span):
    """Every compressed row equals the pool over the raw history, however it came in, and the raw tail stays short."""
    slot, total = xs(ratio=ratio, span=span), sum(chunks)
    history = RNG.standard_normal((total, D)).astype(np.float32)
    for count in chunks:
        slot.append(history[slot.tokens : slot.tokens + count])
        assert len(slot.tail) <= span * ratio + TAIL_MARGIN
        assert slot.base + len(slot.tail) == slot.tokens
    padded = np.concatenate([np.zeros((span * ratio, D), np.float32), history])
    want = [padded[(b + 1) * ratio : (b + 1 + span) * ratio].mean(0) for b in range(total // ratio)]
    np.testing.assert_allclose(slot.comp, np.array(want, np.float32).reshape(-1, D), rtol=1e-5, atol=1e-6)


def test_c12_xs_block_is_visible_once_it_is_whole():
    slot = xs(ratio=4)
    slot.append(np.ones((10, D), np.float32))
    assert [slot.num_visible(position) for position in range(10)] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


@given(st.integers(1, 16), st.integers(20, 60))
def test_c12_xs_rollback_then_other_tokens_is_as_if_they_had_come_at_once(back, total):
    history, other = (RNG.standard_normal((80, D)).astype(np.float32) for _ in range(2))
    slot, straight = xs(), xs()
    slot.append(history[:total])
    slot.set_len(total - back)
    for fed in (slot, straight):
        if fed is straight:
            fed.append(history[: total - back])
        fed.append(other[:back])
    assert slot.tokens == straight.tokens
    np.testing.assert_array_equal(slot.comp, straight.comp)


def test_c12_xs_set_len_refuses_below_its_raw_rows():
    slot = xs()
    slot.append(np.ones((100, D), np.float32))
    with pytest.raises(CacheRefused, match=r"xs_rolling slot cannot go from 100 to 50 tokens: its raw rows begin at \d+"):
        slot.set_len(50)
    for wrong in (-1, 101):
        with pytest.raises(CacheRefused, match=f"no length {wrong}"):
            slot.set_len(wrong)
    assert (slot.tokens, len(slot.comp)) == (100, 25)
