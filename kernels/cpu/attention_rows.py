"""Attention over ragged rows wherever their keys lie: cut into work items, spread over threads, each walked by `attention_tile`."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.cpu.attention_step import new_scratch, scratch
from kernels.cpu.attention_tile import attend
from kernels.cpu.crew import helpers, together
from kernels.cpu.jit import borrowing, jit
from kernels.cpu.team import new_team, take
from kernels.layout import F32, I32, I64, KvArray, Numbers, bits_of, check_array, check_kv

LOG2_E = 1.4426950408889634
QUERIES_PER_TILE = 48
"""Queries (tokens times heads of a group) that read a tile of keys while it is in the first-level cache."""
SERIAL_PRODUCTS = 1 << 19
"""Products of queries and keys under which waking other threads costs more than it brings: some 0.1 ms."""

Shape = tuple[int, int, int, int]
"""kv heads; how far apart two of them lie, and two dimensions of a key; most tokens of an item."""


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """What the rows of one step ask of attention, the same in every layer: made once, by `paged_rows` or `dense_rows`.

    Attributes:
        query_start, context_len: i32 [R + 1] and [R], as in `paged_attention`.
        places: i64 [R, W, 2], where each tile of 16 of each row begins in the flat k and v for head 0; negative = nowhere: what
            needs it comes out as NaN.
        strides: how far apart two heads lie in k and in v, and in k two dimensions.
        items: i64 [n, 3], live tiles of queries as (row, first token, last token + 1), chunks before decode rows so that threads
            finish together.
        num_pairs: of a query token and a key that it may see.
        num_live: tokens of live rows; the others' output is 0, for nobody has written keys for them.
        tile_tokens: most tokens of an item.
        num_elements: size of k, and of v. heads: how many kv heads lie there, and their size.
    """

    query_start: I32
    context_len: I32
    places: I64
    strides: tuple[int, int]
    items: I64
    num_pairs: int
    num_live: int
    tile_tokens: int
    num_elements: int
    heads: tuple[int, int]

    @classmethod
    def of(
        cls,
        lengths: tuple[I32, I32],
        places: I64,
        *,
        strides: tuple[int, int],
        heads: tuple[int, int],
        num_elements: int,
        tile_tokens: int,
    ) -> "RaggedRows":
        """`lengths`: query_start and context_len. Raises ValueError when query_start falls or does not begin at 0 or above."""
        items, num_pairs, num_live = _work_items(*lengths, tile_tokens)
        return cls(*lengths, places, strides, items, num_pairs, num_live, tile_tokens, num_elements, heads)


def tokens_per_tile(num_heads: int, num_kv_heads: int) -> int:
    """Tokens of an item of `RaggedRows`."""
    return max(1, QUERIES_PER_TILE * num_kv_heads // num_heads)


@jit
def _work_items(query_start: I32, context_len: I32, tile_tokens: int) -> tuple[I64, int, int]:
    """(items, num_pairs, num_live) of `RaggedRows`."""
    num_items, num_pairs, num_live = 0, 0, 0
    if query_start[0] < 0:
        raise ValueError("query_start_R leaves the tokens")
    for row in range(context_len.shape[0]):
        num_tokens = query_start[row + 1] - query_start[row]
        if num_tokens < 0:
            raise ValueError("query_start_R falls")
        if num_tokens <= context_len[row]:
            num_live += num_tokens
            num_pairs += num_tokens * context_len[row]
            num_items += (num_tokens + tile_tokens - 1) // tile_tokens
    items = np.empty((num_items, 3), np.int64)
    i = 0
    for decode in (False, True):
        for row in range(context_len.shape[0]):
            num_tokens = query_start[row + 1] - query_start[row]
            if num_tokens <= context_len[row] and (num_tokens == 1) == decode:
                for first in range(query_start[row], query_start[row + 1], tile_tokens):
                    items[i, 0], items[i, 1], items[i, 2] = row, first, min(first + tile_tokens, query_start[row + 1])
                    i += 1
    return items, num_pairs, num_live


@borrowing
def _run(
    team: I64,
    memory: F32,
    items: I64,
    q: F32,
    k: Numbers,
    v: Numbers,
    query_start: I32,
    context_len: I32,
    places: I64,
    shape: Shape,
    scale: np.float32,
    window: int,
    begin: int,
    out: F32,
) -> None:
    """One thread: takes a row of `memory`, and work items until none is left."""
    num_heads, head_stride, key_stride, tile_tokens = shape
    group = q.shape[1] // num_heads
    index = take(team, 1)
    if index >= memory.shape[0]:
        return  # one helper left, another came: those who have memory do the rest
    own = scratch(memory[index], tile_tokens * group, q.shape[2])
    while True:
        index = take(team, 0)
        if index >= items.shape[0] * num_heads:
            return
        row, first, last = items[index // num_heads]
        head = index % num_heads
        position = context_len[row] - query_start[row + 1] + first
        strides = (head_stride, key_stride)
        attend(q, k, v, places[row], strides, first, last, position, head, group, scale, window, begin, own, out)


@jit
def _run_all(board: I64, most: int, *args: Any) -> None:
    together(board, most, _run, args)


def attend_rows(
    q_TND: F32, *, k: KvArray, v: KvArray, rows: RaggedRows, scale: float, window: int, out_TND: F32, begin: int = 0
) -> None:
    """Writes attention of every query token over its row's keys begin..own position into `out_TND`; 0 where there are none.

    Args:
        q_TND: rotated queries, unscaled.
        k, v: one layer's keys and values, f32 or f16, laid out as `rows` says, those of the fed tokens already written.
        window: keys a query sees, itself included; 0 = all.
        begin: the first key that is there; what lies before it is never read.

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    check_array("q_TND", q_TND, dtype=np.float32, ndim=3)
    check_array("out_TND", out_TND, dtype=np.float32, ndim=3)
    check_kv("k", k, ndim=4)
    check_kv("v", v, ndim=4)
    if q_TND.shape != out_TND.shape or rows.query_start[-1] > len(q_TND):
        raise ValueError(f"queries {q_TND.shape}, output {out_TND.shape} and rows of {rows.query_start[-1]} tokens do not fit")
    num_kv_heads, head_dim = rows.heads
    if q_TND.shape[2] != head_dim or not num_kv_heads or q_TND.shape[1] % num_kv_heads:
        raise ValueError(f"queries {q_TND.shape} do not fit {num_kv_heads} kv heads of {head_dim}")
    if k.size != rows.num_elements or v.size != rows.num_elements:
        raise ValueError(f"keys {k.shape} and values {v.shape} are not the {rows.num_elements} elements that the rows lie in")
    if begin < 0:
        raise ValueError(f"begin is {begin}, the first key is 0")
    if rows.num_live < len(q_TND):
        out_TND.fill(0)
    places = (rows.query_start, rows.context_len, rows.places)
    shape = (num_kv_heads, *rows.strides, rows.tile_tokens)
    kv, factor = (bits_of(k), bits_of(v)), np.float32(scale * LOG2_E)
    board, most = helpers(worth_it=rows.num_pairs * q_TND.shape[1] * q_TND.shape[2] >= SERIAL_PRODUCTS)
    memory = new_scratch(most + 1, rows.tile_tokens * (q_TND.shape[1] // num_kv_heads), head_dim)
    _run_all(board, most, new_team(2), memory, rows.items, q_TND, *kv, *places, shape, factor, window, begin, out_TND)
