"""The inside of attention: neighbouring queries of one row and one kv head, walked over the row's tiles of 16 keys.

A query's arithmetic is fixed by its own position and the cache's content alone: tiles in order of absolute position; scores with
one lane a token, the head dimension summed in parts of 32; one online softmax step a tile; values added token by token. How many
queries share a loaded tile, where it lies and which thread takes it, changes no bit.
"""

from collections.abc import Callable

import numpy as np

from kernels.cpu import tiles
from kernels.cpu.exponential import exp2
from kernels.cpu.jit import inlined
from kernels.cpu.lanes import broadcast, first_lane, fused, keep, load, max_lanes, mul, number, prefetch, store, sub, sum_lanes
from kernels.layout import BLOCK_SIZE, F32, I64, Numbers

MINUS_INFINITY = np.float32(-np.inf)
NAN = np.float32(np.nan)
ZERO = np.float32(0)
ONE = np.float32(1)
SUMMED_AT_ONCE = 32
"""Dimensions of a head whose products are summed one by one; the parts are added then: a wide head rounds like a small one."""
PREFETCH_TILES = 2
"""How far ahead of the tile in work one is fetched: the latency of memory is longer than the work on one tile."""

Scratch = tuple[F32, F32, F32, F32, F32, F32]
"""For M queries: scaled queries [M, D], output so far [M, D], scores then weights [M, 16], weight seen so far [M, 16] (one a lane),
greatest score so far [M], factor of the last softmax step [M]."""


@inlined
def scratch(num_queries: int, head_dim: int) -> Scratch:
    """Working memory of one thread."""
    big, lanes = num_queries * head_dim, num_queries * BLOCK_SIZE
    f32 = np.float32
    return (
        np.empty(big, f32),
        np.empty(big, f32),
        np.empty(lanes, f32),
        np.empty(lanes, f32),
        np.empty(num_queries, f32),
        np.empty(num_queries, f32),
    )


def _shared_loads(count: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """The two inner loops for `count` neighbouring queries; `at` is where the tile begins, `following` the one to fetch meanwhile.

    Keys of one dimension lie `stride` behind those of the dimension before; values of a token lie together.
    """

    def scores(q: F32, first: int, k: Numbers, at: int, following: int, stride: int, head_dim: int, s: F32) -> None:
        total = tiles.zeros(count)
        for start in range(0, head_dim, SUMMED_AT_ONCE):
            part = tiles.zeros(count)
            for d in range(start, min(start + SUMMED_AT_ONCE, head_dim)):
                prefetch(k, following + stride * d)
                part = tiles.accumulate(part, q, first * head_dim + d, head_dim, load(k, at + stride * d))
            total = tiles.add(total, part)
        tiles.store(total, s, first * BLOCK_SIZE, BLOCK_SIZE)

    def values(
        p: F32, first: int, low: int, high: int, shrink: F32, v: Numbers, at: int, following: int, head_dim: int, acc: F32
    ) -> None:
        whole = head_dim // BLOCK_SIZE * BLOCK_SIZE
        for d in range(0, whole, BLOCK_SIZE):
            total = tiles.scale(tiles.load(count, acc, first * head_dim + d, head_dim), shrink, first, 1)
            for t in range(low, high):
                prefetch(v, following + t * head_dim + d)
                total = tiles.accumulate(total, p, first * BLOCK_SIZE + t, BLOCK_SIZE, load(v, at + t * head_dim + d))
            tiles.store(total, acc, first * head_dim + d, head_dim)

    return inlined(scores), inlined(values)


_scores_1, _values_1 = _shared_loads(1)
_scores_3, _values_3 = _shared_loads(3)
_scores_4, _values_4 = _shared_loads(4)


@inlined
def _softmax_step(s: F32, i: int, low: int, high: int, seen: F32, top: F32, shrink: F32) -> None:
    """Turns query i's scores into weights relative to its new maximum; lanes outside low..high-1 weigh exactly 0."""
    x = keep(load(s, i * BLOCK_SIZE), low, high, MINUS_INFINITY)
    new_top = max(top[i], max_lanes(x))
    p = keep(exp2(sub(x, broadcast(new_top))), low, high, ZERO)
    shrink[i] = first_lane(exp2(broadcast(top[i] - new_top)))
    top[i] = new_top
    store(s, i * BLOCK_SIZE, p)
    store(seen, i * BLOCK_SIZE, fused(load(seen, i * BLOCK_SIZE), broadcast(shrink[i]), p))


@inlined
def _values_tail(p: F32, i: int, low: int, high: int, shrink: F32, v: Numbers, at: int, head_dim: int, acc: F32) -> None:
    """Query i's elements behind the last whole sixteen of a head."""
    for d in range(head_dim // BLOCK_SIZE * BLOCK_SIZE, head_dim):
        total = acc[i * head_dim + d] * shrink[i]
        for t in range(low, high):
            total += p[i * BLOCK_SIZE + t] * number(v, at + t * head_dim + d)
        acc[i * head_dim + d] = total


@inlined
def _tile_step(
    first: int,
    last: int,
    low: int,
    high: int,
    k: Numbers,
    v: Numbers,
    at: I64,
    following: I64,
    offset: int,
    stride: int,
    head_dim: int,
    memory: Scratch,
) -> None:
    """Queries first..last-1 look at tokens low..high-1 of the tile `offset` behind `at` (k's place, v's), for the kv head there.

    Only the first of them fetch `following`.
    """
    q, acc, s, seen, top, shrink = memory
    k_at, v_at, k_next, v_next = at[0] + offset, at[1] + offset, following[0] + offset, following[1] + offset
    while first < last:
        count = last - first
        if count >= 4:
            count = 4
            _scores_4(q, first, k, k_at, k_next, stride, head_dim, s)
        elif count == 3:
            _scores_3(q, first, k, k_at, k_next, stride, head_dim, s)
        else:
            count = 1
            _scores_1(q, first, k, k_at, k_next, stride, head_dim, s)
        for i in range(first, first + count):
            _softmax_step(s, i, low, high, seen, top, shrink)
        if count == 4:
            _values_4(s, first, low, high, shrink, v, v_at, v_next, head_dim, acc)
        elif count == 3:
            _values_3(s, first, low, high, shrink, v, v_at, v_next, head_dim, acc)
        else:
            _values_1(s, first, low, high, shrink, v, v_at, v_next, head_dim, acc)
        for i in range(first, first + count if head_dim % BLOCK_SIZE else first):
            _values_tail(s, i, low, high, shrink, v, v_at, head_dim, acc)
        first += count
        k_next, v_next = k_at, v_at


@inlined
def _start(q: F32, first: int, last: int, head: int, group: int, scale: np.float32, memory: Scratch) -> None:
    queries, acc, _, seen, top, _ = memory
    num_heads, head_dim = q.shape[1], q.shape[2]
    whole = head_dim // BLOCK_SIZE * BLOCK_SIZE
    factor, nothing = broadcast(scale), broadcast(ZERO)
    i = 0
    for token in range(first, last):
        for g in range(group):
            source, to = (token * num_heads + head * group + g) * head_dim, i * head_dim
            for d in range(0, whole, BLOCK_SIZE):
                store(queries, to + d, mul(load(q, source + d), factor))
                store(acc, to + d, nothing)
            for d in range(whole, head_dim):
                queries[to + d] = q[token, head * group + g, d] * scale
                acc[to + d] = ZERO
            store(seen, i * BLOCK_SIZE, nothing)
            top[i] = MINUS_INFINITY
            i += 1


@inlined
def _finish(first: int, last: int, head: int, group: int, memory: Scratch, out: F32) -> None:
    _, acc, _, seen, _, _ = memory
    num_heads, head_dim = out.shape[1], out.shape[2]
    whole = head_dim // BLOCK_SIZE * BLOCK_SIZE
    i = 0
    for token in range(first, last):
        for g in range(group):
            total = sum_lanes(load(seen, i * BLOCK_SIZE))
            share = ZERO if total == ZERO else ONE / total  # nothing to be seen gives 0
            factor, to = broadcast(share), (token * num_heads + head * group + g) * head_dim
            for d in range(0, whole, BLOCK_SIZE):
                store(out, to + d, mul(load(acc, i * head_dim + d), factor))
            for d in range(whole, head_dim):
                out[token, head * group + g, d] = acc[i * head_dim + d] * share
            i += 1


@inlined
def attend(
    q: F32,
    k: Numbers,
    v: Numbers,
    places: I64,
    strides: tuple[int, int],
    first: int,
    last: int,
    position: int,
    head: int,
    group: int,
    scale: np.float32,
    window: int,
    begin: int,
    memory: Scratch,
    out: F32,
) -> None:
    """Tokens first..last-1, the first at `position` of its row, for kv head `head`, whose `group` query heads go together.

    `places` i64 [tiles, 2]: where each of the row's tiles begins in k and in v for head 0, negative = nowhere: an output that needs
    it is NaN. `strides`: between heads, and between dimensions of a key. `scale` includes log2(e): weights are powers of 2.
    Keys before position `begin` are not there.
    """
    head_dim = q.shape[2]
    final = position + (last - first) - 1
    stop = final // BLOCK_SIZE + 1
    start = min((max(begin, position - window + 1) if window > 0 else begin) // BLOCK_SIZE, stop - 1)
    if stop > places.shape[0] or places[start:stop].min() < 0:
        out[first:last, head * group : (head + 1) * group] = NAN
        return
    _start(q, first, last, head, group, scale, memory)
    offset, stride = head * strides[0], strides[1]
    for j in range(start, stop):
        base = j * BLOCK_SIZE
        following = places[min(j + PREFETCH_TILES, stop - 1)]
        # Where some token sees only a part, tokens go one by one: no weight of 0 may meet a value that its token must not see.
        whole = position - base >= BLOCK_SIZE - 1 and begin <= base and (window <= 0 or final - window + 1 <= base)
        step = last - first if whole else 1
        for i in range(0, last - first, step):
            low, high = 0, BLOCK_SIZE
            if not whole:
                low = max(0, begin - base)
                if window > 0:
                    low = max(low, position + i - window + 1 - base)
                high = min(BLOCK_SIZE, position + i + 1 - base)
            if low < high:
                _tile_step(i * group, (i + step) * group, low, high, k, v, places[j], following, offset, stride, head_dim, memory)
    _finish(first, last, head, group, memory, out)
