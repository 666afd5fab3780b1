"""Rotated layers: equal to the reference, the same bits in any batch, near the product of floats whatever stands out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cpu.crew import num_threads, set_num_threads
from kernels.cpu.integer_linear import integer_linear, packed, rotated
from kernels.cpu.rotate_rows import rotate_rows
from kernels.cpu.rotated_tile import PANEL
from kernels.packed_weights import LINE
from kernels.reference.rotated_linear import rotate_rows as reference_codes
from kernels.reference.rotated_linear import rotated_linear as reference
from kernels.rotated_weights import BLOCK, MOST_INPUTS, SIGNS, RotatedWeights, pack_rotated

SHAPES = [(32, 64), (13, 32), (100, 96), (576, 576), (7, 1536), (1, 32)]
ROWS = [1, 2, 3, 4, 5, 8, 9, 15, 17, 33, 130]


def random(*shape: int, seed: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(x: np.ndarray, weights: RotatedWeights) -> np.ndarray:
    out = np.full((len(x), len(weights.codes)), np.nan, np.float32)
    integer_linear(x, weights=packed(weights), out_MN=out)
    return out


def codes_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(codes, scales, sums of codes)."""
    codes, scales = np.empty(x.shape, np.int8), np.empty((len(x), x.shape[1] // 32, 2), np.float32)
    rotate_rows(x, 0, len(x), codes, scales)
    return codes, scales[:, 0, 0], scales[:, 0, 1]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_rows", ROWS)
def test_equals_the_reference(shape, num_rows):
    weights, x = rotated(random(*shape, seed=3)), random(num_rows, shape[1])
    expected = reference(x, weights=weights)
    np.testing.assert_allclose(run(x, weights), expected, rtol=4e-7, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_products_do_not_overflow(sign):
    """All codes at an end of their range, on both sides: the most that a sum must hold, and its correction."""
    size = 4096
    weights = RotatedWeights(np.full((PANEL + 3, size), -127, np.int8), np.full(PANEL + 3, 0.5, np.float32))
    x = np.zeros((9, size), np.float32)
    x[:, ::BLOCK] = sign * 2.0  # one input of a block, turned, is as great in all places
    assert (np.abs(codes_of(x)[0]) == 127).all()
    np.testing.assert_allclose(run(x, weights), reference(x, weights=weights), rtol=1e-6)


def test_a_row_has_the_same_bits_in_any_batch_at_any_place():
    weights, x = rotated(random(100, 96, seed=3)), random(70, 96)
    alone = np.concatenate([run(row[None], weights) for row in x])
    for count in (2, 3, 4, 7, 8, 12, 16, 23, 33, 64, 70):
        assert np.array_equal(run(x[-count:], weights), alone[-count:]), count
    assert np.array_equal(run(x[::-1].copy(), weights), alone[::-1])


def test_threads_change_no_bit():
    weight, x, before = random(200, 64, seed=3), random(40, 64), num_threads()
    made = []
    try:
        for threads in (1, 2):
            set_num_threads(threads)
            weights = rotated(weight)
            made.append((weights.codes, weights.scale, run(x, weights)))
    finally:
        set_num_threads(before)
    assert all(np.array_equal(one, two) for one, two in zip(*made, strict=True))


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 3e38])
def test_a_value_that_is_not_finite_breaks_its_own_row_only(broken):
    """Nor may a turned row be infinite, which 3e38 becomes."""
    weights, x = rotated(random(16, 64, seed=3)), random(6, 64)
    good = run(x, weights)
    x[2, 40:42] = broken
    out = run(x, weights)
    assert np.isnan(out[2]).all()
    assert np.array_equal(np.delete(out, 2, 0), np.delete(good, 2, 0))


@given(
    st.sampled_from([32, 64, 96]).flatmap(
        lambda size: st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=size, max_size=size)
    )
)
def test_codes_equal_the_reference_for_any_float(values):
    x = np.array([values], np.float32)
    codes, scale, total = codes_of(x)
    expected, expected_scale = reference_codes(x)
    np.testing.assert_array_equal(scale, expected_scale)
    np.testing.assert_array_equal(codes, expected)
    assert total[0] == codes.astype(int).sum()


@pytest.mark.parametrize("num_in", [96, 576, 1536])
def test_what_stands_out_costs_little(num_in):
    """One input 40 times the others, as models have them: with one scale a row and no turning the others would keep 3 bits."""
    weight, x = random(64, num_in, seed=3), random(50, num_in)
    x[:, 7] *= 40
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    error = run(x, rotated(weight)) - exact
    assert np.sqrt((error**2).mean() / (exact**2).mean()) < 0.02


def test_no_walsh_function_is_near_the_signs():
    """Bent: whatever is equal in all of a block, or alternates in it, is spread evenly."""
    lane = np.arange(BLOCK)
    walsh = (-1) ** np.array([[int(i & j).bit_count() for i in lane] for j in lane])
    assert (np.abs(walsh @ SIGNS) == 8).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_named(bad):
    weight = random(9, 128)
    weight[5, 70] = bad
    with pytest.raises(ValueError, match="output 5"):
        rotated(weight)


def test_what_no_kernel_takes_is_refused():
    scale = np.ones(2, np.float32)
    for shape in ((2, 40), (3, 64), (2, MOST_INPUTS + 64)):
        with pytest.raises(ValueError, match="do not fit"):
            RotatedWeights(np.zeros(shape, np.int8), scale)
    with pytest.raises(ValueError, match="the least is -127"):
        RotatedWeights(np.full((2, 64), -128, np.int8), scale)
    with pytest.raises(ValueError, match="multiple of 32"):
        rotated(random(4, 40))
    with pytest.raises(ValueError, match="do not fit"):
        run(random(3, 32), rotated(random(8, 64)))
    other = pack_rotated(rotated(random(8, 64)), panel=2 * PANEL, raised=0)
    with pytest.raises(ValueError, match="packed for panels"):
        integer_linear(random(3, 64), weights=other, out_MN=np.empty((3, 8), np.float32))


def test_codes_begin_at_a_cache_line():
    assert all(packed(rotated(random(num_out, 64))).codes.ctypes.data % LINE == 0 for num_out in (1, 7, 8, 33, 100))
