"""Paged attention over ragged rows: prefill chunks and decode rows in one call, any GQA ratio, any head size, own length per row.

A query's arithmetic is fixed by its own position and cache content alone: blocks in order of absolute position; scores with one
lane a token, the head dimension summed in order; one online softmax step a block; values added token by token. How many queries
share a loaded block, and which thread takes them, changes no bit.
"""

import numpy as np
from numba import prange

from kernels.cpu.attention_tile import attend, scratch
from kernels.cpu.jit import jit, jit_parallel, num_threads
from kernels.cpu.lanes import next_item
from kernels.layout import F32, I32, I64, check_cache, check_rows

LOG2_E = 1.4426950408889634
QUERIES_PER_TILE = 48
"""Queries (tokens times heads of a group) that read a block while it is in the first-level cache."""
SERIAL_PRODUCTS = 1 << 19
"""Products of queries and keys under which waking other threads costs more than it brings: some 0.1 ms."""


@jit
def _work_items(query_start: I32, context_len: I32, tile_tokens: int, out: F32) -> tuple[I64, int]:
    """(live tiles as [row, first token, last token + 1], chunks before decode rows so that threads finish together; products).

    Tokens of no live row get output 0 on the way: nobody has written keys for them.
    """
    num_items, num_pairs = 0, 0
    if query_start[0] < 0 or query_start[-1] > out.shape[0]:
        raise ValueError("query_start_R leaves the tokens")
    for row in range(context_len.shape[0]):
        num_tokens = query_start[row + 1] - query_start[row]
        if num_tokens < 0:
            raise ValueError("query_start_R falls")
        if num_tokens <= context_len[row]:
            num_pairs += num_tokens * context_len[row]
            num_items += (num_tokens + tile_tokens - 1) // tile_tokens
        else:
            out[query_start[row] : query_start[row + 1]] = np.float32(0)
    out[: query_start[0]] = np.float32(0)
    out[query_start[-1] :] = np.float32(0)
    items = np.empty((num_items, 3), np.int64)
    i = 0
    for decode in (False, True):
        for row in range(context_len.shape[0]):
            num_tokens = query_start[row + 1] - query_start[row]
            if num_tokens <= context_len[row] and (num_tokens == 1) == decode:
                for first in range(query_start[row], query_start[row + 1], tile_tokens):
                    items[i, 0], items[i, 1], items[i, 2] = row, first, min(first + tile_tokens, query_start[row + 1])
                    i += 1
    return items, num_pairs * out.shape[1] * out.shape[2]


@jit
def _run(
    counter: I64,
    items: I64,
    q: F32,
    k: F32,
    v: F32,
    query_start: I32,
    context_len: I32,
    tables: I32,
    scale: np.float32,
    window: int,
    tile_tokens: int,
    out: F32,
) -> None:
    """One thread: takes work items until none is left."""
    num_heads = k.shape[1]
    memory = scratch(tile_tokens * (q.shape[1] // num_heads), q.shape[2])
    while True:
        index = next_item(counter)
        if index >= items.shape[0] * num_heads:
            return
        row, first, last = items[index // num_heads]
        position = context_len[row] - query_start[row + 1] + first
        attend(q, k, v, tables[row], first, last, position, index % num_heads, scale, window, memory, out)


@jit_parallel
def _run_all(
    counter: I64,
    items: I64,
    q: F32,
    k: F32,
    v: F32,
    query_start: I32,
    context_len: I32,
    tables: I32,
    scale: np.float32,
    window: int,
    tile_tokens: int,
    out: F32,
    num_workers: int,
) -> None:
    for _ in prange(num_workers):
        _run(counter, items, q, k, v, query_start, context_len, tables, scale, window, tile_tokens, out)


def paged_attention(
    q_TND: F32,
    *,
    k_BKDP: F32,
    v_BKPD: F32,
    query_start_R: I32,
    context_len_R: I32,
    block_tables_RW: I32,
    scale: float,
    out_TND: F32,
    window: int = 0,
    tile_tokens: int = 0,
) -> None:
    """Writes attention of every query token over its row's keys 0..own position into `out_TND`.

    Args:
        q_TND: rotated queries, unscaled.
        k_BKDP, v_BKPD: one layer's cache, with the keys of the fed tokens already written.
        query_start_R: i32 [R+1]; row r owns tokens query_start[r]:query_start[r+1], the last ones of its context.
        context_len_R: i32 [R], tokens with keys after this step. A row with fewer than it feeds is dead; its output is 0.
        block_tables_RW: i32 [R, W]; a row that needs a block whose id is not in the cache comes out as NaN, alone.
        window: keys a query sees, itself included; 0 = all.
        tile_tokens: tokens a work item, 0 = chosen; speed only, never a bit of the result.

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    check_cache(k_BKDP, v_BKPD, num_heads=q_TND.shape[1], head_dim=q_TND.shape[2])
    check_rows(q_TND, out_TND, query_start_R, context_len_R, block_tables_RW)
    tile = tile_tokens or max(1, QUERIES_PER_TILE * k_BKDP.shape[1] // q_TND.shape[1])
    items, num_products = _work_items(query_start_R, context_len_R, tile, out_TND)
    counter = np.zeros(1, np.int64)
    num_workers = num_threads()
    rows = (query_start_R, context_len_R, block_tables_RW)
    args = (counter, items, q_TND, k_BKDP, v_BKPD, *rows, np.float32(scale * LOG2_E), window, tile, out_TND)
    if num_workers == 1 or num_products < SERIAL_PRODUCTS:
        _run(*args)
    else:
        _run_all(*args, num_workers)
