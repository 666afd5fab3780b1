"""The inside of `paged_attention`: neighbouring queries of one row and one kv head, walked over the row's blocks."""

from collections.abc import Callable

import numpy as np

from kernels.cpu import tiles
from kernels.cpu.exponential import exp2
from kernels.cpu.jit import inlined
from kernels.cpu.lanes import broadcast, first_lane, fused, keep, load, max_lanes, prefetch, store, sub, sum_lanes
from kernels.layout import BLOCK_SIZE, F32, I32

MINUS_INFINITY = np.float32(-np.inf)
NAN = np.float32(np.nan)
ZERO = np.float32(0)
ONE = np.float32(1)
PREFETCH_BLOCKS = 2
"""How far ahead of the block in work one is fetched: the latency of memory is longer than the work on one block."""

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
    """The two inner loops for `count` neighbouring queries; `following` is the block to fetch meanwhile."""

    def scores(q: F32, first: int, k: F32, block: int, following: int, head_dim: int, s: F32) -> None:
        total = tiles.zeros(count)
        for d in range(head_dim):
            prefetch(k, following + BLOCK_SIZE * d)
            total = tiles.accumulate(total, q, first * head_dim + d, head_dim, load(k, block + BLOCK_SIZE * d))
        tiles.store(total, s, first * BLOCK_SIZE, BLOCK_SIZE)

    def values(
        p: F32, first: int, low: int, high: int, shrink: F32, v: F32, block: int, following: int, head_dim: int, acc: F32
    ) -> None:
        whole = head_dim // BLOCK_SIZE * BLOCK_SIZE
        for at in range(0, whole, BLOCK_SIZE):
            total = tiles.scale(tiles.load(count, acc, first * head_dim + at, head_dim), shrink, first, 1)
            for t in range(low, high):
                prefetch(v, following + t * head_dim + at)
                total = tiles.accumulate(total, p, first * BLOCK_SIZE + t, BLOCK_SIZE, load(v, block + t * head_dim + at))
            tiles.store(total, acc, first * head_dim + at, head_dim)

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
def _values_tail(p: F32, i: int, low: int, high: int, shrink: F32, v: F32, block: int, head_dim: int, acc: F32) -> None:
    """Query i's elements behind the last whole sixteen of a head."""
    flat = v.reshape(-1)
    for at in range(head_dim // BLOCK_SIZE * BLOCK_SIZE, head_dim):
        total = acc[i * head_dim + at] * shrink[i]
        for t in range(low, high):
            total += p[i * BLOCK_SIZE + t] * flat[block + t * head_dim + at]
        acc[i * head_dim + at] = total


@inlined
def _block_step(
    first: int, last: int, low: int, high: int, k: F32, v: F32, block: int, following: int, head_dim: int, memory: Scratch
) -> None:
    """Queries first..last-1 look at tokens low..high-1 of one block. Only the first of them prefetch the next one."""
    q, acc, s, seen, top, shrink = memory
    while first < last:
        count = last - first
        if count >= 4:
            count = 4
            _scores_4(q, first, k, block, following, head_dim, s)
        elif count == 3:
            _scores_3(q, first, k, block, following, head_dim, s)
        else:
            count = 1
            _scores_1(q, first, k, block, following, head_dim, s)
        for i in range(first, first + count):
            _softmax_step(s, i, low, high, seen, top, shrink)
        if count == 4:
            _values_4(s, first, low, high, shrink, v, block, following, head_dim, acc)
        elif count == 3:
            _values_3(s, first, low, high, shrink, v, block, following, head_dim, acc)
        else:
            _values_1(s, first, low, high, shrink, v, block, following, head_dim, acc)
        for i in range(first, first + count):
            _values_tail(s, i, low, high, shrink, v, block, head_dim, acc)
        first += count
        following = block


@inlined
def _start(q: F32, first: int, last: int, head: int, group: int, scale: np.float32, memory: Scratch) -> None:
    queries, acc, _, seen, top, _ = memory
    head_dim = q.shape[2]
    i = 0
    for token in range(first, last):
        for g in range(group):
            for d in range(head_dim):
                queries[i * head_dim + d] = q[token, head * group + g, d] * scale
                acc[i * head_dim + d] = ZERO
            for t in range(BLOCK_SIZE):
                seen[i * BLOCK_SIZE + t] = ZERO
            top[i] = MINUS_INFINITY
            i += 1


@inlined
def _finish(first: int, last: int, head: int, group: int, memory: Scratch, out: F32) -> None:
    _, acc, _, seen, _, _ = memory
    head_dim = out.shape[2]
    i = 0
    for token in range(first, last):
        for g in range(group):
            share = ONE / sum_lanes(load(seen, i * BLOCK_SIZE))
            for d in range(head_dim):
                out[token, head * group + g, d] = acc[i * head_dim + d] * share
            i += 1


@inlined
def _usable(table: I32, start: int, stop: int, num_blocks: int) -> bool:
    if stop > table.shape[0]:
        return False
    blocks = table[start:stop]
    return bool(np.all((blocks >= 0) & (blocks < num_blocks)))


@inlined
def attend(
    q: F32,
    k: F32,
    v: F32,
    table: I32,
    first: int,
    last: int,
    position: int,
    head: int,
    scale: np.float32,
    window: int,
    memory: Scratch,
    out: F32,
) -> None:
    """Tokens first..last-1, the first at `position`, for kv head `head`; `scale` includes log2(e): weights are powers of 2."""
    head_dim = q.shape[2]
    group = q.shape[1] // k.shape[1]
    size = head_dim * BLOCK_SIZE
    final = position + (last - first) - 1
    start = max(0, position - window + 1) // BLOCK_SIZE if window > 0 else 0
    stop = final // BLOCK_SIZE + 1
    if not _usable(table, start, stop, k.shape[0]):
        out[first:last, head * group : (head + 1) * group] = NAN
        return
    _start(q, first, last, head, group, scale, memory)
    for j in range(start, stop):
        block = (np.int64(table[j]) * k.shape[1] + head) * size
        following = (np.int64(table[min(j + PREFETCH_BLOCKS, stop - 1)]) * k.shape[1] + head) * size
        base = j * BLOCK_SIZE
        # Where some token sees only a part, tokens go one by one: no weight of 0 may meet a value that its token must not see.
        whole = position - base >= BLOCK_SIZE - 1 and (window <= 0 or final - window + 1 <= base)
        step = last - first if whole else 1
        for i in range(0, last - first, step):
            low, high = 0, BLOCK_SIZE
            if not whole:
                low = max(0, position + i - window + 1 - base) if window > 0 else 0
                high = min(BLOCK_SIZE, position + i + 1 - base)
            if low < high:
                _block_step(i * group, (i + step) * group, low, high, k, v, block, following, head_dim, memory)
    _finish(first, last, head, group, memory, out)
