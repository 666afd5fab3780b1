"""Attention over a dense cohort: rows share one array of columns, each begins behind its own dead prefix, which nobody looks at.

The arithmetic is that of `paged_attention`, tile by tile at the row's own positions: a row has the same bits in blocks, in a cohort
of any width and alone. There is no mask to forget: `lead_R` is the mask, for one query token or many, with a window or without.
"""

from collections.abc import Callable

import numpy as np
from numba import prange

from kernels.cpu import tiles
from kernels.cpu.attention_tile import (
    NAN,
    Scratch,
    _finish,
    _softmax_step,
    _start,
    _values_1,
    _values_3,
    _values_4,
    _values_tail,
    scratch,
)
from kernels.cpu.jit import inlined, jit, jit_parallel, num_threads
from kernels.cpu.lanes import load, next_item, prefetch
from kernels.cpu.paged_attention import LOG2_E, QUERIES_PER_TILE, SERIAL_PRODUCTS, _work_items
from kernels.layout import BLOCK_SIZE, F32, I32, I64, check_array, check_cohort

PREFETCH_TILES = 2
"""As PREFETCH_BLOCKS of `attention_tile`."""


def _shared_loads(count: int) -> Callable[..., None]:
    """Scores of `count` neighbouring queries; keys of one dimension lie `columns` apart."""

    def scores(q: F32, first: int, k: F32, at: int, following: int, columns: int, head_dim: int, s: F32) -> None:
        total = tiles.zeros(count)
        for d in range(head_dim):
            prefetch(k, following + columns * d)
            total = tiles.accumulate(total, q, first * head_dim + d, head_dim, load(k, at + columns * d))
        tiles.store(total, s, first * BLOCK_SIZE, BLOCK_SIZE)

    return inlined(scores)


_scores_1 = _shared_loads(1)
_scores_3 = _shared_loads(3)
_scores_4 = _shared_loads(4)


@inlined
def _tile_step(
    first: int,
    last: int,
    low: int,
    high: int,
    k: F32,
    k_at: int,
    k_next: int,
    v: F32,
    v_at: int,
    v_next: int,
    head_dim: int,
    memory: Scratch,
) -> None:
    """Queries first..last-1 look at tokens low..high-1 of one tile. Only the first of them prefetch the next one."""
    q, acc, s, seen, top, shrink = memory
    columns = k.shape[3]
    while first < last:
        count = last - first
        if count >= 4:
            count = 4
            _scores_4(q, first, k, k_at, k_next, columns, head_dim, s)
        elif count == 3:
            _scores_3(q, first, k, k_at, k_next, columns, head_dim, s)
        else:
            count = 1
            _scores_1(q, first, k, k_at, k_next, columns, head_dim, s)
        for i in range(first, first + count):
            _softmax_step(s, i, low, high, seen, top, shrink)
        if count == 4:
            _values_4(s, first, low, high, shrink, v, v_at, v_next, head_dim, acc)
        elif count == 3:
            _values_3(s, first, low, high, shrink, v, v_at, v_next, head_dim, acc)
        else:
            _values_1(s, first, low, high, shrink, v, v_at, v_next, head_dim, acc)
        for i in range(first, first + count):
            _values_tail(s, i, low, high, shrink, v, v_at, head_dim, acc)
        first += count
        k_next, v_next = k_at, v_at


@inlined
def _attend(
    q: F32,
    k: F32,
    v: F32,
    member: int,
    lead: int,
    first: int,
    last: int,
    position: int,
    head: int,
    scale: np.float32,
    window: int,
    memory: Scratch,
    out: F32,
) -> None:
    """Tokens first..last-1, the first at `position` of its row, for kv head `head`; `scale` includes log2(e)."""
    head_dim, columns = q.shape[2], k.shape[3]
    group = q.shape[1] // k.shape[1]
    final = position + (last - first) - 1
    start = max(0, position - window + 1) // BLOCK_SIZE if window > 0 else 0
    stop = final // BLOCK_SIZE + 1
    if member < 0 or member >= k.shape[0] or lead + start * BLOCK_SIZE < 0 or lead + stop * BLOCK_SIZE > columns:
        out[first:last, head * group : (head + 1) * group] = NAN
        return
    _start(q, first, last, head, group, scale, memory)
    corner = (np.int64(member) * k.shape[1] + head) * head_dim * columns
    for j in range(start, stop):
        base = j * BLOCK_SIZE
        column = lead + base
        ahead = lead + min(j + PREFETCH_TILES, stop - 1) * BLOCK_SIZE
        # As in paged attention: where some token sees only a part, tokens go one by one.
        whole = position - base >= BLOCK_SIZE - 1 and (window <= 0 or final - window + 1 <= base)
        step = last - first if whole else 1
        for i in range(0, last - first, step):
            low, high = 0, BLOCK_SIZE
            if not whole:
                low = max(0, position + i - window + 1 - base) if window > 0 else 0
                high = min(BLOCK_SIZE, position + i + 1 - base)
            if low < high:
                _tile_step(
                    i * group,
                    (i + step) * group,
                    low,
                    high,
                    k,
                    corner + column,
                    corner + ahead,
                    v,
                    corner + column * head_dim,
                    corner + ahead * head_dim,
                    head_dim,
                    memory,
                )
    _finish(first, last, head, group, memory, out)


@jit
def _run(
    counter: I64,
    items: I64,
    q: F32,
    k: F32,
    v: F32,
    query_start: I32,
    context_len: I32,
    member: I32,
    lead: I32,
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
        _attend(q, k, v, member[row], lead[row], first, last, position, index % num_heads, scale, window, memory, out)


@jit_parallel
def _run_all(
    counter: I64,
    items: I64,
    q: F32,
    k: F32,
    v: F32,
    query_start: I32,
    context_len: I32,
    member: I32,
    lead: I32,
    scale: np.float32,
    window: int,
    tile_tokens: int,
    out: F32,
    num_workers: int,
) -> None:
    for _ in prange(num_workers):
        _run(counter, items, q, k, v, query_start, context_len, member, lead, scale, window, tile_tokens, out)


def dense_attention(
    q_TND: F32,
    *,
    k_MKDY: F32,
    v_MKYD: F32,
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
    num_rows = context_len_R.shape[0]
    for name, column in (("context_len_R", context_len_R), ("member_R", member_R), ("lead_R", lead_R)):
        check_array(name, column, dtype=np.int32, ndim=1)
        if column.shape[0] != num_rows:
            raise ValueError(f"{name} has {column.shape[0]} entries for {num_rows} rows")
    check_array("query_start_R", query_start_R, dtype=np.int32, ndim=1)
    if query_start_R.shape[0] != num_rows + 1:
        raise ValueError(f"query_start_R has {query_start_R.shape[0]} entries for {num_rows} rows")
    tile = max(1, QUERIES_PER_TILE * k_MKDY.shape[1] // q_TND.shape[1])
    items, num_products = _work_items(query_start_R, context_len_R, tile, out_TND)
    counter = np.zeros(1, np.int64)
    num_workers = num_threads()
    rows = (query_start_R, context_len_R, member_R, lead_R)
    args = (counter, items, q_TND, k_MKDY, v_MKYD, *rows, np.float32(scale * LOG2_E), window, tile, out_TND)
    if num_workers == 1 or num_products < SERIAL_PRODUCTS:
        _run(*args)
    else:
        _run_all(*args, num_workers)
