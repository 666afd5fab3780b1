"""Attention over a dense cohort: rows share one array of columns, each begins behind its own dead prefix, which nobody looks at.

The arithmetic is that of `paged_attention`, tile by tile at the row's own positions: a row has the same bits in blocks, in a cohort
of any width and alone. There is no mask to forget: `lead_R` is the mask, for one query token or many, with a window or without.
"""

import numpy as np

from kernels.cpu.attention_rows import RaggedRows, attend_rows, tokens_per_tile
from kernels.cpu.jit import jit
from kernels.layout import BLOCK_SIZE, F32, I32, I64, KvArray, check_array, check_cohort


@jit
def _places(context_len: I32, member: I32, lead: I32, num_members: int, elements: int, head_dim: int, columns: int) -> I64:
    """Where each tile of 16 of each row begins, i64 [R, W, 2] (k's place, v's); -1 for a tile that leaves the columns."""
    width = (max(0, context_len.max()) + BLOCK_SIZE - 1) // BLOCK_SIZE if context_len.shape[0] else 0
    places = np.empty((context_len.shape[0], width, 2), np.int64)
    for row in range(context_len.shape[0]):
        corner = np.int64(member[row]) * elements
        for j in range(width):
            column = np.int64(lead[row]) + j * BLOCK_SIZE
            if 0 <= member[row] < num_members and 0 <= column <= columns - BLOCK_SIZE:
                places[row, j, 0], places[row, j, 1] = corner + column, corner + column * head_dim
            else:
                places[row, j, :] = -1
    return places


def dense_rows(
    query_start_R: I32, context_len_R: I32, member_R: I32, lead_R: I32, *, cohort_shape: tuple[int, ...], tile_tokens: int
) -> RaggedRows:
    """The rows of a step over a cohort whose keys have the shape [M, K, D, Y]; arguments and errors as in `dense_attention`."""
    num_rows = context_len_R.shape[0]
    for name, column in (("context_len_R", context_len_R), ("member_R", member_R), ("lead_R", lead_R)):
        check_array(name, column, dtype=np.int32, ndim=1)
        if column.shape[0] != num_rows:
            raise ValueError(f"{name} has {column.shape[0]} entries for {num_rows} rows")
    check_array("query_start_R", query_start_R, dtype=np.int32, ndim=1)
    if query_start_R.shape[0] != num_rows + 1:
        raise ValueError(f"query_start_R has {query_start_R.shape[0]} entries for {num_rows} rows")
    num_members, num_kv_heads, head_dim, columns = cohort_shape
    member = num_kv_heads * head_dim * columns
    return RaggedRows.of(
        (query_start_R, context_len_R),
        _places(context_len_R, member_R, lead_R, num_members, member, head_dim, columns),
        strides=(head_dim * columns, columns),
        heads=(num_kv_heads, head_dim),
        num_elements=num_members * member,
        tile_tokens=tile_tokens,
    )


def dense_attention(
    q_TND: F32,
    *,
    k_MKDY: KvArray,
    v_MKYD: KvArray,
    query_start_R: I32,
    context_len_R: I32,
    member_R: I32,
    lead_R: I32,
    scale: float,
    out_TND: F32,
    window: int = 0,
) -> None:
    """Writes attention of every query token over its row's keys 0..own position into `out_TND`.

    Args:
        q_TND: rotated queries, unscaled.
        k_MKDY, v_MKYD: one layer of a cohort of M members and Y columns, with the keys of the fed tokens already written.
        query_start_R: i32 [R+1]; row r owns tokens query_start[r]:query_start[r+1], the last ones of its context.
        context_len_R: i32 [R], live tokens with keys after this step. A row with fewer than it feeds is dead; its output is 0.
        member_R: i32 [R], where each row lies in the cohort.
        lead_R: i32 [R], the column of the row's position 0: its dead prefix. Negative when leading tokens were dropped (a rolling
            window). A row whose tiles of 16 from there leave the columns comes out as NaN, alone.
        window: keys a query sees, itself included; 0 = all.

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    check_cohort(q_TND, out_TND, k_MKDY, v_MKYD)
    num_kv_heads = k_MKDY.shape[1]
    tile = tokens_per_tile(q_TND.shape[1], num_kv_heads)
    rows = dense_rows(query_start_R, context_len_R, member_R, lead_R, cohort_shape=k_MKDY.shape, tile_tokens=tile)
    attend_rows(q_TND, k=k_MKDY, v=v_MKYD, rows=rows, scale=scale, window=window, out_TND=out_TND)
