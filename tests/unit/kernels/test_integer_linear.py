"""Integer layers in groups: equal to the reference, the same bits in any batch, and a broken input breaks its own row only."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cpu.crew import num_threads, set_num_threads
from kernels.cpu.group_tile import PANEL
from kernels.cpu.integer_linear import integer_linear, packed
from kernels.cpu.quantise_rows import quantise_rows
from kernels.group_weights import GROUP, GroupWeights, pack, rounded, side_by_side
from kernels.packed_weights import LINE
from kernels.reference.group_linear import group_linear as reference
from kernels.reference.group_linear import quantise_rows as reference_codes

SHAPES = [(8, 32), (13, 64), (576, 576), (7, 1536), (192, 96), (1, 32)]


def weights_of(bits: int, num_out: int, num_in: int, *, seed: int = 3) -> GroupWeights:
    """Random codes that reach both ends of their range, scales of both signs."""
    rng = np.random.default_rng(seed)
    shape = (num_out, num_in // GROUP)
    scale = (rng.standard_normal(shape) * 0.02).astype(np.float16)
    if bits == 8:
        return GroupWeights(rng.integers(-127, 128, (num_out, num_in)).astype(np.int8), scale, None)
    codes = rng.integers(0, 16, (num_out, num_in)).astype(np.uint8)
    return GroupWeights(codes, scale, rng.standard_normal(shape).astype(np.float16))


def rows_of(num_rows: int, num_in: int, *, seed: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((num_rows, num_in)).astype(np.float32)


def run(x: np.ndarray, weights: GroupWeights) -> np.ndarray:
    out = np.full((len(x), len(weights.codes)), np.nan, np.float32)
    integer_linear(x, weights=packed(weights), out_MN=out)
    return out


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 6, 37])
def test_equals_the_reference(bits, shape, num_rows):
    weights, x = weights_of(bits, *shape), rows_of(num_rows, shape[1])
    expected = reference(x, weights=weights)
    np.testing.assert_allclose(run(x, weights), expected, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_products_do_not_overflow(bits):
    """16 products of 15 x 127, or pairs of 127 x 127, are the most that an int16 lane must hold."""
    codes = np.full((8, 64), 15, np.uint8) if bits == 4 else np.full((8, 64), -127, np.int8)
    scale = np.ones((8, 2), np.float16)
    weights = GroupWeights(codes, scale, np.zeros_like(scale) if bits == 4 else None)
    for sign in (1, -1):
        x = np.full((5, 64), sign * 3.0, np.float32)
        np.testing.assert_allclose(run(x, weights), reference(x, weights=weights), rtol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_has_the_same_bits_in_any_batch_at_any_place(bits):
    weights, x = weights_of(bits, 100, 96), rows_of(70, 96)
    alone = np.concatenate([run(row[None], weights) for row in x])
    for count in (2, 5, 33, 64, 70):
        assert np.array_equal(run(x[-count:], weights), alone[-count:])
    assert np.array_equal(run(x[::-1].copy(), weights), alone[::-1])


@pytest.mark.parametrize("bits", [4, 8])
def test_threads_change_no_bit(bits):
    weights, x, before = weights_of(bits, 200, 64), rows_of(40, 64), num_threads()
    alone = np.concatenate([run(row[None], weights) for row in x])
    try:
        for threads in (1, 2):
            set_num_threads(threads)
            assert np.array_equal(run(x, weights), alone)
    finally:
        set_num_threads(before)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_breaks_its_own_row_only(bits, broken):
    weights, x = weights_of(bits, 16, 64), rows_of(6, 64)
    good = run(x, weights)
    x[2, 40] = broken
    out = run(x, weights)
    assert np.isnan(out[2]).all()
    assert np.array_equal(np.delete(out, 2, 0), np.delete(good, 2, 0))


@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=GROUP, max_size=GROUP))
def test_codes_equal_the_reference_for_any_float(values):
    x = np.array([values], np.float32)
    codes, scales = np.empty(x.shape, np.int8), np.empty((1, 1, 2), np.float32)
    quantise_rows(x, 0, 1, codes, scales)
    expected, scale = reference_codes(x)
    np.testing.assert_array_equal(scales[..., 0], scale)
    np.testing.assert_array_equal(codes, expected)
    with np.errstate(over="ignore"):
        total = scale * expected.reshape(1, 1, GROUP).sum(-1).astype(np.float32)
    np.testing.assert_array_equal(scales[..., 1], np.where(np.isnan(scale), np.float32(np.nan), total))


def test_rounding_to_8_bits_keeps_each_weight_within_half_a_step():
    weight = rows_of(9, 128)
    weight[3] = 0
    groups = rounded(weight)
    step = np.repeat(groups.scale, GROUP, axis=1).astype(np.float32)
    assert (
        np.abs(groups.dequantised() - weight) <= 0.57 * step
    ).all()  # the scale is rounded too, to 11 bits: 127 / 2048 of a step
    assert np.array_equal(groups.dequantised()[3], weight[3])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e8])
def test_a_weight_that_no_scale_can_hold_is_named(bad):
    weight = rows_of(9, 128)
    weight[5, 70] = bad
    with pytest.raises(ValueError, match="output 5, inputs 64 to 95"):
        rounded(weight)


def test_side_by_side_and_picked_are_rows_of_the_whole():
    parts = [weights_of(4, 5, 64, seed=1), weights_of(4, 7, 64, seed=2)]
    whole = side_by_side(parts)
    assert np.array_equal(whole.dequantised(), np.concatenate([part.dequantised() for part in parts]))
    assert np.array_equal(whole.picked(slice(5)).dequantised(), parts[0].dequantised())
    assert side_by_side([parts[0], weights_of(8, 5, 64)]) is None


def test_what_no_kernel_takes_is_refused():
    scale = np.ones((2, 2), np.float16)
    with pytest.raises(ValueError, match="groups of 32"):
        GroupWeights(np.zeros((2, 40), np.int8), scale, None)
    with pytest.raises(ValueError, match="the least is -127"):
        GroupWeights(np.full((2, 64), -128, np.int8), scale, None)
    with pytest.raises(ValueError, match="have an offset"):
        GroupWeights(np.zeros((2, 64), np.uint8), scale, None)
    with pytest.raises(ValueError, match="do not fit"):
        run(rows_of(3, 32), weights_of(4, 8, 64))


def test_weights_packed_for_another_processor_are_refused():
    other = pack(weights_of(4, 8, 64), panel=24 - PANEL)
    with pytest.raises(ValueError, match="packed for panels"):
        integer_linear(rows_of(3, 64), weights=other, out_MN=np.empty((3, 8), np.float32))


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_begin_at_a_cache_line(bits):
    assert all(packed(weights_of(bits, num_out, 64)).codes.ctypes.data % LINE == 0 for num_out in (1, 7, 8, 33, 100))
