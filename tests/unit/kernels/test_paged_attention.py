"""Paged attention: against the reference, against torch, and the promises about bits, dead rows and bad tables."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.cpu import crew
from kernels.cpu.attention_rows import attend_rows
from kernels.cpu.paged_attention import paged_attention, paged_rows
from kernels.reference.paged_attention import paged_attention as reference
from tests.support.paged_batches import paged_batch

RAGGED = [(1, 1), (16, 16), (17, 1), (100, 33), (40, 7), (64, 1), (33, 33), (250, 1)]


@pytest.fixture(params=[1, 2])
def threads(request):
    before = crew.num_threads()
    crew.set_num_threads(request.param)
    yield request.param
    crew.set_num_threads(before)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(9, 3, 64), (8, 1, 128), (4, 4, 80), (2, 2, 256), (14, 2, 64), (5, 1, 20), (4, 2, 8)]
)
@pytest.mark.parametrize("window", [0, 1, 24])
def test_ragged_batch_equals_the_reference(heads, kv_heads, head_dim, window, threads):
    batch = paged_batch(RAGGED, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, window=window)
    np.testing.assert_allclose(batch.run(), reference(batch.q, **batch.arguments()), rtol=0, atol=4e-6)


def test_whole_prefill_equals_torch_attention():
    batch = paged_batch([(77, 77)], num_heads=6, num_kv_heads=2, head_dim=64)
    blocks = batch.tables[0, :5]
    keys = batch.k[blocks].transpose(1, 0, 3, 2).reshape(2, -1, 64)[:, :77]
    values = batch.v[blocks].transpose(1, 0, 2, 3).reshape(2, -1, 64)[:, :77]
    q, k, v = (torch.from_numpy(np.ascontiguousarray(x)).unsqueeze(0) for x in (batch.q.transpose(1, 0, 2), keys, values))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    np.testing.assert_allclose(batch.run(), expected[0].transpose(0, 1).numpy(), rtol=0, atol=4e-6)


def test_a_planted_wrong_rule_is_seen():
    """The comparison has teeth: a window that is off by one is far outside the tolerance."""
    batch = paged_batch(RAGGED, num_heads=9, num_kv_heads=3, head_dim=64, window=24)
    wrong = reference(batch.q, **batch.arguments() | {"window": 25})
    assert np.abs(batch.run() - wrong).max() > 1e-2


@pytest.mark.parametrize("window", [0, 24])
def test_a_row_gets_the_same_bits_alone_and_in_a_batch(window, threads):
    batch = paged_batch(RAGGED, num_heads=9, num_kv_heads=3, head_dim=64, window=window)
    whole = batch.run()
    for row, (_, tokens) in enumerate(RAGGED):
        alone = batch.part(row, 0, tokens).run()
        np.testing.assert_array_equal(alone, whole[batch.query_start[row] : batch.query_start[row + 1]])


@pytest.mark.parametrize("chunk", [1, 3, 16, 50])
def test_chunks_get_the_same_bits_as_the_whole(chunk):
    batch = paged_batch([(133, 120)], num_heads=9, num_kv_heads=3, head_dim=64)
    parts = [batch.part(0, first, min(first + chunk, 120)).run() for first in range(0, 120, chunk)]
    np.testing.assert_array_equal(np.concatenate(parts), batch.run())


def test_tiles_and_threads_change_no_bit():
    batch = paged_batch(RAGGED, num_heads=9, num_kv_heads=3, head_dim=64)
    before, results = crew.num_threads(), []
    for num_threads in (1, 2):
        crew.set_num_threads(num_threads)
        results += [batch.run(tile_tokens=tile) for tile in (0, 1, 2, 5, 64)]
    crew.set_num_threads(before)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_what_a_token_must_not_see_cannot_spread():
    """A later token of the same chunk may hold infinity or NaN: earlier ones keep their bits."""
    batch = paged_batch([(40, 40)], num_heads=3, num_kv_heads=1, head_dim=64)
    before = batch.run()
    batch.k[batch.tables[0, 2], :, :, 7] = np.nan
    batch.v[batch.tables[0, 2], :, 7] = np.inf
    after = batch.run()
    np.testing.assert_array_equal(after[:39], before[:39])
    assert np.isnan(after[39]).all()


def test_b070_dead_rows_are_zero_and_touch_nobody(threads):
    rows = [(40, 1), (90, 8), (17, 17)]
    batch = paged_batch(rows, num_heads=9, num_kv_heads=3, head_dim=64)
    alive = batch.run()
    dead = replace(batch, context_len=np.array([40, 0, 17], np.int32))
    dead.tables[1] = -1
    result = dead.run()
    assert not result[1:9].any()
    np.testing.assert_array_equal(np.delete(result, range(1, 9), 0), np.delete(alive, range(1, 9), 0))


def test_b070_tokens_of_no_row_are_zero():
    batch = paged_batch([(40, 3), (9, 2)], num_heads=3, num_kv_heads=3, head_dim=64)
    padded = replace(batch, q=np.concatenate([batch.q, np.full((4, 3, 64), np.nan, np.float32)]))
    np.testing.assert_array_equal(padded.run()[:5], batch.run())
    assert not padded.run()[5:].any()


@pytest.mark.parametrize("bad", [-1, 10**6])
def test_a_row_whose_table_is_wrong_is_nan_alone(bad):
    batch = paged_batch([(40, 1), (90, 8), (17, 17)], num_heads=9, num_kv_heads=3, head_dim=64)
    before = batch.run()
    batch.tables[1, 2] = bad
    after = batch.run()
    assert np.isnan(after[1:9]).all()
    np.testing.assert_array_equal(np.delete(after, range(1, 9), 0), np.delete(before, range(1, 9), 0))


def test_a_table_that_is_too_narrow_is_nan_and_empty_batches_are_fine():
    batch = paged_batch([(40, 1)], num_heads=3, num_kv_heads=3, head_dim=64)
    assert np.isnan(replace(batch, tables=batch.tables[:, :2].copy()).run()).all()
    empty = paged_batch([], num_heads=3, num_kv_heads=3, head_dim=64)
    assert empty.run().shape == (0, 3, 64)


@pytest.mark.parametrize("change", [
    {"context_len": np.zeros(2, np.int32)},
    {"query_start": np.array([0, 2], np.int32)},
    {"query_start": np.array([-1, 1], np.int32)},
    {"query_start": np.array([1, 0], np.int32)},
    {"tables": np.zeros((1, 9), np.int64)},
    {"q": np.zeros((1, 4, 64), np.float32)},
    {"q": np.zeros((1, 64, 3), np.float32).transpose(0, 2, 1)},
])  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(change):
    with pytest.raises(ValueError, match=r"fit|want|share|falls|leaves"):
        replace(paged_batch([(40, 1)], num_heads=3, num_kv_heads=3, head_dim=64), **change).run()


def test_prepared_rows_meet_only_the_cache_that_they_were_made_for():
    """As many elements in another shape would be read beyond the end."""
    batch = paged_batch([(20, 1), (9, 3)], num_heads=4, num_kv_heads=2, head_dim=64)
    tables = (batch.query_start, batch.context_len, batch.tables)
    rows = paged_rows(*tables, cache_shape=batch.k.shape, tile_tokens=4)

    def refused(match: str, *, q=batch.q, k=batch.k, v=batch.v) -> None:
        with pytest.raises(ValueError, match=match):
            attend_rows(q, k=k, v=v, rows=rows, scale=1.0, window=0, out_TND=np.empty_like(q))

    attend_rows(batch.q, k=batch.k, v=batch.v, rows=rows, scale=1.0, window=0, out_TND=np.empty_like(batch.q))
    refused("kv heads of 64", q=np.zeros((4, 4, 128), np.float32))
    refused("2 kv heads", q=np.zeros((4, 3, 64), np.float32))
    refused("elements", k=np.zeros((1, 2, 64, 16), np.float32))
    refused("v: want", v=batch.v.astype(np.float64))
    refused("k: want", k=batch.k[:, :, ::2])
    for wrong in (
        (batch.query_start[:1], batch.context_len[:1], batch.tables[:1]),
        (batch.query_start, batch.context_len, batch.tables[:1]),
        (batch.query_start.astype(np.int64), batch.context_len, batch.tables),
    ):
        with pytest.raises(ValueError, match=r"query_start|block_tables"):
            paged_rows(*wrong, cache_shape=batch.k.shape, tile_tokens=4)


@pytest.mark.parametrize("begin", [1, 5, 16, 33])
@pytest.mark.parametrize("window", [0, 20])
def test_keys_before_the_beginning_are_not_there(begin, window):
    """Rows that end before it see nothing, which is 0; what lies there may be anything."""
    batch = paged_batch([(40, 40), (70, 1), (20, 3), (4, 4), (1, 1)], num_heads=6, num_kv_heads=2, head_dim=64, window=window)
    expected = reference(batch.q, **batch.arguments(), begin=begin)
    for row in range(len(batch.context_len)):
        for position in range(min(begin, int(batch.context_len[row]))):
            block, place = batch.tables[row, position // 16], position % 16
            batch.k[block, :, :, place] = np.nan
            batch.v[block, :, place] = np.nan
    out = np.full_like(batch.q, np.nan)
    paged_attention(batch.q, **batch.arguments(), out_TND=out, begin=begin)
    np.testing.assert_allclose(out, expected, atol=2e-6, rtol=2e-5)
    assert (out == 0).all(axis=(1, 2)).any()


def test_a_beginning_before_the_first_key_is_refused():
    batch = paged_batch([(20, 1)], num_heads=2, num_kv_heads=2, head_dim=64)
    with pytest.raises(ValueError, match="begin is -1"):
        paged_attention(batch.q, **batch.arguments(), out_TND=np.empty_like(batch.q), begin=-1)
