"""Attention over a front-aligned cohort: the paged kernel's bits, the masked reference's values, torch's with the same mask."""

import numpy as np
import pytest
import torch

from kernels.cpu.crew import num_threads, set_num_threads
from kernels.cpu.dense_attention import dense_attention
from kernels.reference import dense_attention as reference
from kernels.reference.ragged_mask import ragged_mask
from tests.support.dense_cohorts import DenseCohort
from tests.support.paged_batches import paged_batch

DECODE = [(5, 1), (37, 1), (100, 1), (16, 1), (333, 1), (1, 1)]
SEVERAL = [(9, 4), (37, 4), (100, 4), (16, 4), (4, 4)]
MIXED = [(5, 1), (37, 7), (100, 60), (16, 16)]


def run(cohort: DenseCohort, **other) -> np.ndarray:
    out = np.full_like(cohort.q, np.nan)
    dense_attention(cohort.q, **(cohort.rest | other), out_TND=out)
    return out


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("rows", [DECODE, SEVERAL, MIXED])
@pytest.mark.parametrize("head_dim", [64, 20])
def test_c8_a_row_has_the_bits_that_it_has_in_blocks(rows, window, head_dim):
    """One query and several, sliding window and not; every dead column is NaN, so one that is looked at shows."""
    paged = paged_batch(rows, num_heads=9, num_kv_heads=3, head_dim=head_dim, window=window)
    cohort = DenseCohort.of(paged)
    want, before = paged.run(), num_threads()
    try:
        for threads in (1, 2):
            set_num_threads(threads)
            np.testing.assert_array_equal(run(cohort), want)
    finally:
        set_num_threads(before)
    np.testing.assert_allclose(want, reference.dense_attention(cohort.q, **cohort.rest), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("rows", [DECODE, SEVERAL])
def test_c8_torch_with_the_additive_mask_agrees(rows, window):
    paged = paged_batch(rows, num_heads=6, num_kv_heads=3, head_dim=64, window=window)
    cohort = DenseCohort.of(paged, dead=0.0)
    fed, width = rows[0][1], max(length for length, _ in rows) - rows[0][1]
    live = paged.context_len - fed
    mask = torch.from_numpy(ragged_mask(live, width=width, num_queries=fed, window=window))
    order = cohort.rest["member_R"]
    k = torch.from_numpy(cohort.rest["k_MKDY"][order, :, :, : width + fed]).transpose(2, 3)
    v = torch.from_numpy(cohort.rest["v_MKYD"][order, :, : width + fed])
    q = torch.from_numpy(cohort.q).reshape(len(rows), fed, 6, 64).transpose(1, 2)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)
    np.testing.assert_allclose(run(cohort), want.reshape(cohort.q.shape).numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("fed", [1, 3])
def test_c9_an_unmasked_dead_prefix_takes_weight_without_any_error(fed):
    """A zero key weighs e^0: the same cohort read as if its rows began at column 0 is wrong, and nothing says so."""
    paged = paged_batch([(20, fed), (64, fed)], num_heads=2, num_kv_heads=2, head_dim=16)
    cohort = DenseCohort.of(paged, dead=0.0)
    masked = run(cohort)
    width = np.full(2, 64, np.int32)
    unmasked = run(cohort, lead_R=np.zeros(2, np.int32), context_len_R=width)
    np.testing.assert_array_equal(masked, paged.run())
    np.testing.assert_array_equal(unmasked[fed:], masked[fed:])
    assert np.abs(unmasked[:fed] - masked[:fed]).max() > 0.01
    assert np.isfinite(unmasked).all()


def test_mask_by_hand():
    """live 1 and 3 behind width 3, two queries; window 2 besides."""
    inf = -np.inf
    plain = ragged_mask(np.array([1, 3], np.int32), width=3, num_queries=2)
    assert plain.shape == (2, 1, 2, 5)
    np.testing.assert_array_equal(plain[0, 0], [[inf, inf, 0, 0, inf], [inf, inf, 0, 0, 0]])
    np.testing.assert_array_equal(plain[1, 0], [[0, 0, 0, 0, inf], [0, 0, 0, 0, 0]])
    sliding = ragged_mask(np.array([1, 3], np.int32), width=3, num_queries=2, window=2)
    np.testing.assert_array_equal(sliding[0, 0], [[inf, inf, 0, 0, inf], [inf, inf, inf, 0, 0]])
    np.testing.assert_array_equal(ragged_mask(np.array([1, 3], np.int32), width=3, num_queries=1)[0, 0], [[inf, inf, 0, 0]])


def test_a_row_that_would_leave_the_cohort_is_nan_alone():
    cohort = DenseCohort.of(paged_batch(DECODE, num_heads=2, num_kv_heads=1, head_dim=16))
    good = run(cohort)
    for name, row, value in (("lead_R", 2, 300), ("lead_R", 2, -1), ("member_R", 2, 99), ("member_R", 2, -1)):
        column = cohort.rest[name].copy()
        column[row] = value
        bad = run(cohort, **{name: column})
        assert np.isnan(bad[row]).all()
        np.testing.assert_array_equal(np.delete(bad, row, 0), np.delete(good, row, 0))


@pytest.mark.parametrize("name", ["k_MKDY", "v_MKYD", "context_len_R", "member_R", "lead_R", "query_start_R"])
def test_shapes_that_do_not_fit_are_named(name):
    cohort = DenseCohort.of(paged_batch(DECODE, num_heads=2, num_kv_heads=1, head_dim=16))
    wrong = cohort.rest[name][..., :-1]
    with pytest.raises(ValueError, match=r"cohort|entries for|do not fit|contiguous"):
        run(cohort, **{name: np.ascontiguousarray(wrong) if name.endswith("_R") else wrong})
