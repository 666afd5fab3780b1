"""Paged attention over ragged rows: prefill chunks and decode rows in one call, any GQA ratio and head size, own lengths."""

import numpy as np

from kernels.cpu.attention_rows import RaggedRows, attend_rows, tokens_per_tile
from kernels.cpu.jit import jit
from kernels.layout import BLOCK_SIZE, F32, I32, I64, KvArray, check_cache, check_rows


@jit
def _places(tables: I32, num_blocks: int, block_elements: int) -> I64:
    """Where each block of each row begins, in k and in v alike, i64 [R, W, 2]; -1 where the table names no block of the cache."""
    places = np.empty((*tables.shape, 2), np.int64)
    for row in range(tables.shape[0]):
        for j in range(tables.shape[1]):
            block = tables[row, j]
            places[row, j, :] = np.int64(block) * block_elements if 0 <= block < num_blocks else -1
    return places


def paged_rows(
    query_start_R: I32, context_len_R: I32, block_tables_RW: I32, *, cache_shape: tuple[int, ...], tile_tokens: int
) -> RaggedRows:
    """The rows of a step over a cache whose keys have the shape [B, K, D, 16]; arguments and errors as in `paged_attention`."""
    check_rows(query_start_R, context_len_R, block_tables_RW)
    num_blocks, num_kv_heads, head_dim, _ = cache_shape
    block = num_kv_heads * head_dim * BLOCK_SIZE
    return RaggedRows.of(
        (query_start_R, context_len_R),
        _places(block_tables_RW, num_blocks, block),
        strides=(head_dim * BLOCK_SIZE, BLOCK_SIZE),
        heads=(num_kv_heads, head_dim),
        num_elements=num_blocks * block,
        tile_tokens=tile_tokens,
    )


def paged_attention(
    q_TND: F32,
    *,
    k_BKDP: KvArray,
    v_BKPD: KvArray,
    query_start_R: I32,
    context_len_R: I32,
    block_tables_RW: I32,
    scale: float,
    out_TND: F32,
    window: int = 0,
    begin: int = 0,
    tile_tokens: int = 0,
) -> None:
    """Writes attention of every query token over its row's keys begin..own position into `out_TND`; 0 where there are none.

    Args:
        q_TND: rotated queries, unscaled.
        k_BKDP, v_BKPD: one layer's cache, with the keys of the fed tokens already written.
        query_start_R: i32 [R+1]; row r owns tokens query_start[r]:query_start[r+1], the last ones of its context.
        context_len_R: i32 [R], tokens with keys after this step. A row with fewer than it feeds is dead; its output is 0.
        block_tables_RW: i32 [R, W]; a row that needs a block whose id is not in the cache comes out as NaN, alone.
        window: keys a query sees, itself included; 0 = all.
        begin: the first key that is there; what lies before it is never read.
        tile_tokens: tokens a work item, 0 = chosen; speed only, never a bit of the result.

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    check_cache(k_BKDP, v_BKPD, num_heads=q_TND.shape[1], head_dim=q_TND.shape[2])
    tile = tile_tokens or tokens_per_tile(q_TND.shape[1], k_BKDP.shape[1])
    rows = paged_rows(query_start_R, context_len_R, block_tables_RW, cache_shape=k_BKDP.shape, tile_tokens=tile)
    attend_rows(q_TND, k=k_BKDP, v=v_BKPD, rows=rows, scale=scale, window=window, out_TND=out_TND, begin=begin)
