"""What neighbouring queries do with one step of 64 keys: scores, softmax, values. `attention_tile` says in which order, and why no
bit depends on how many go together.

Legend: `places` i64 [blocks, 2], where a row's blocks of 16 tokens begin in k and in v for head 0; `offset`: from there to the head
in work; `stride`: between dimensions of a key; low..high-1: the tokens of a step that are seen; `following`: the step to fetch
meanwhile, whole, or the one in work.
"""

from collections.abc import Callable

import numpy as np

from kernels.cpu import tiles
from kernels.cpu.exponential import exp2
from kernels.cpu.jit import inlined, jit, processor_has
from kernels.cpu.lanes import (
    add,
    broadcast,
    first_lane,
    keep,
    load,
    max_lanes,
    maximum,
    mul,
    prefetch,
    store,
    sub,
)
from kernels.cpu.numbers import number
from kernels.layout import BLOCK_SIZE, F32, I64, Numbers

MINUS_INFINITY = np.float32(-np.inf)
NAN = np.float32(np.nan)
ZERO = np.float32(0)
ONE = np.float32(1)
SUMMED_AT_ONCE = 32
"""Dimensions of a head whose products are summed one by one; the parts are added then: a wide head rounds like a small one."""
LINE_OF_HALVES = 32
"""float16 in a cache line."""
BLOCKS = 4
STEP = BLOCKS * BLOCK_SIZE
"""Keys of a softmax step. With 16 each step waits for the one before; the sums of 64 keys are enough work to hide that."""
WIDE = BLOCKS if processor_has("avx512f") else 1
"""Vectors of keys or of values that queries take at once: their sums, 3 or 4 times as many, must fit into the registers."""

LINE = 16
"""float32 in a cache line."""

Scratch = tuple[F32, F32, F32, F32, F32, F32]
"""For M queries: scaled queries [M, D], output so far [M, D], scores then weights [M, 64], weight seen so far [M, 16] (one a lane),
greatest score so far [M], factor of the last softmax step [M]."""


Four = tuple[int, int, int, int]


@jit
def _whole_lines(count: int) -> int:
    return (count + LINE - 1) // LINE * LINE


def new_scratch(num_threads: int, num_queries: int, head_dim: int) -> F32:
    """Memory for so many threads, f32 [threads, n], each row on cache lines of its own: a vector across two is read twice. Made by
    the caller, who lends it: arrays without an owner cost no counting of references whenever they are handed on."""
    size = num_queries * (2 * head_dim + STEP + BLOCK_SIZE) + 2 * _whole_lines(num_queries)
    size = _whole_lines(size)
    memory = np.empty(num_threads * size + LINE, np.float32)
    skipped = -memory.ctypes.data % (4 * LINE) // 4
    return memory[skipped : skipped + num_threads * size].reshape(num_threads, size)


@inlined
def scratch(memory: F32, num_queries: int, head_dim: int) -> Scratch:
    """The parts of a row of `new_scratch`."""
    seen = num_queries * (2 * head_dim + STEP)
    top = seen + num_queries * BLOCK_SIZE
    factor = top + _whole_lines(num_queries)
    queries, acc = memory[: num_queries * head_dim], memory[num_queries * head_dim : 2 * num_queries * head_dim]
    return queries, acc, memory[2 * num_queries * head_dim : seen], memory[seen:top], memory[top:factor], memory[factor:]


@inlined
def _four(places: I64, offset: int, block: int, begin: int, last: int) -> Four:
    """Where the keys of a step's blocks lie; for a block that is not one of begin..last another one, whose scores nobody reads."""
    return (
        places[block + begin, 0] + offset,
        places[block + max(begin, min(1, last)), 0] + offset,
        places[block + max(begin, min(2, last)), 0] + offset,
        places[block + last, 0] + offset,
    )


def _scores(count: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """Products of `count` neighbouring queries with the keys of one block, and of all blocks of a step at once.

    Keys of one dimension lie `stride` behind those of the dimension before. `at`, `ahead`: where the keys of the four blocks in
    work begin, and of those to fetch meanwhile.
    """
    all_sums = count * BLOCKS

    def of_block(q: F32, first: int, k: Numbers, at: int, stride: int, head_dim: int, s: F32, to: int) -> None:
        total = tiles.zeros(count)
        for start in range(0, head_dim, SUMMED_AT_ONCE):
            part = tiles.zeros(count)
            for d in range(start, min(start + SUMMED_AT_ONCE, head_dim)):
                part = tiles.accumulate(part, q, first * head_dim + d, head_dim, tiles.row(1, k, at + stride * d))
            total = tiles.add(total, part)
        tiles.store(total, 1, s, first * STEP + to, STEP)

    def of_step(q: F32, first: int, k: Numbers, at: Four, ahead: Four, stride: int, head_dim: int, s: F32) -> None:
        total = tiles.zeros(all_sums)
        for start in range(0, head_dim, SUMMED_AT_ONCE):
            part = tiles.zeros(all_sums)
            for d in range(start, min(start + SUMMED_AT_ONCE, head_dim)):
                odd = d & 1  # a line holds two dimensions of a block in float16
                prefetch(k, (ahead[1] if odd else ahead[0]) + stride * d)
                prefetch(k, (ahead[3] if odd else ahead[2]) + stride * d)
                part = tiles.accumulate(part, q, first * head_dim + d, head_dim, tiles.column(k, at, stride * d))
            total = tiles.add(total, part)
        tiles.store(total, BLOCKS, s, first * STEP, STEP)

    return inlined(of_block), inlined(of_step)


def _values(count: int, width: int) -> Callable[..., None]:
    """Adds the values of tokens low..high-1 of a step, elements d and on of a head, `width` times sixteen of them; a query's sum so
    far shrinks before. The lines of step `following` are fetched meanwhile."""

    def values(
        p: F32, first: int, low: int, high: int, shrink: F32, v: Numbers, places: I64, offset: int, step: int, following: int,
        head_dim: int, d: int, acc: F32,
    ) -> None:  # fmt: skip
        total = tiles.scale(tiles.load(count, width, acc, first * head_dim + d, head_dim), count, shrink, first)
        for b in range(low // BLOCK_SIZE, (high + BLOCK_SIZE - 1) // BLOCK_SIZE):
            base = b * BLOCK_SIZE
            at, after = places[step * BLOCKS + b, 1] + offset + d, places[following * BLOCKS + b, 1] + offset + d
            for t in range(max(low - base, 0), min(high - base, BLOCK_SIZE)):
                prefetch(v, after + t * head_dim)
                prefetch(v, after + t * head_dim + LINE_OF_HALVES)
                total = tiles.accumulate(total, p, first * STEP + base + t, STEP, tiles.row(width, v, at + t * head_dim))
        tiles.store(total, width, acc, first * head_dim + d, head_dim)

    return inlined(values)


def _shared_loads(count: int) -> tuple[Callable[..., int], Callable[..., int]]:
    """What queries first..last-1 do, `count` at a time, with tokens low..high-1 of a step, for the kv head `offset` behind a
    block's place: scores, and, when these are weights, values, of `rise` more tokens each time while the step has any. Both say
    which query is the next; only the first ones fetch `following`."""
    of_block, of_step = _scores(count)
    values_wide, values_narrow = _values(count, WIDE), _values(count, 1)

    def scores(
        first: int, last: int, low: int, high: int, k: Numbers, places: I64, offset: int, step: int, following: int, stride: int,
        head_dim: int, memory: Scratch,
    ) -> int:  # fmt: skip
        q, s = memory[0], memory[2]
        begin, end, block = low // BLOCK_SIZE, (high + BLOCK_SIZE - 1) // BLOCK_SIZE, step * BLOCKS
        at = _four(places, offset, block, begin, end - 1)
        ahead = _four(places, offset, following * BLOCKS, 0, BLOCKS - 1) if following != step else at
        while first + count <= last:
            if WIDE > 1 and end - begin > 2:
                of_step(q, first, k, at, ahead, stride, head_dim, s)
            else:
                for b in range(begin, end):
                    of_block(q, first, k, places[block + b, 0] + offset, stride, head_dim, s, b * BLOCK_SIZE)
            ahead = at
            first += count
        return first

    def values(
        first: int, last: int, low: int, high: int, rise: int, v: Numbers, places: I64, offset: int, step: int, following: int,
        head_dim: int, memory: Scratch,
    ) -> int:  # fmt: skip
        _, acc, s, _, _, shrink = memory
        while first + count <= last:
            d = 0
            while d + WIDE * BLOCK_SIZE <= head_dim:
                values_wide(s, first, low, high, shrink, v, places, offset, step, following, head_dim, d, acc)
                d += WIDE * BLOCK_SIZE
            while d + BLOCK_SIZE <= head_dim:
                values_narrow(s, first, low, high, shrink, v, places, offset, step, following, head_dim, d, acc)
                d += BLOCK_SIZE
            if d < head_dim:
                for i in range(first, first + count):
                    _values_tail(s, i, low, high, shrink, v, places, offset, step, head_dim, d, acc)
            following = step
            first += count
            high = min(high + rise, STEP)
        return first

    return jit(scores), jit(values)


@inlined
def _softmax_step(s: F32, i: int, low: int, high: int, seen: F32, top: F32, shrink: F32) -> None:
    """Turns query i's scores into weights relative to its new maximum; tokens outside low..high-1 weigh exactly 0."""
    at, begin, end = i * STEP, low // BLOCK_SIZE * BLOCK_SIZE, (high + BLOCK_SIZE - 1) // BLOCK_SIZE * BLOCK_SIZE
    most = broadcast(MINUS_INFINITY)
    for base in range(begin, end, BLOCK_SIZE):
        most = maximum(most, keep(load(s, at + base), low - base, high - base, MINUS_INFINITY))
    new_top = max(top[i], max_lanes(most))
    factor, peak = exp2(broadcast(top[i] - new_top)), broadcast(new_top)
    shrink[i], top[i] = first_lane(factor), new_top
    total = mul(load(seen, i * BLOCK_SIZE), factor)
    for base in range(begin, end, BLOCK_SIZE):
        x = keep(load(s, at + base), low - base, high - base, MINUS_INFINITY)
        p = keep(exp2(sub(x, peak)), low - base, high - base, ZERO)
        store(s, at + base, p)
        total = add(total, p)
    store(seen, i * BLOCK_SIZE, total)


@inlined
def _values_tail(
    p: F32,
    i: int,
    low: int,
    high: int,
    shrink: F32,
    v: Numbers,
    places: I64,
    offset: int,
    step: int,
    head_dim: int,
    d: int,
    acc: F32,
) -> None:
    """Query i's elements behind the last whole sixteen of a head."""
    for element in range(d, head_dim):
        total = acc[i * head_dim + element] * shrink[i]
        for t in range(low, high):
            at = places[step * BLOCKS + t // BLOCK_SIZE, 1] + offset + t % BLOCK_SIZE * head_dim + element
            total += p[i * STEP + t] * number(v, at)
        acc[i * head_dim + element] = total


_scores_1, _values_1 = _shared_loads(1)
_scores_3, _values_3 = _shared_loads(3)
_scores_4, _values_4 = _shared_loads(4)


@inlined
def scores_of(
    first: int, last: int, low: int, high: int, k: Numbers, places: I64, offset: int, step: int, following: int, stride: int,
    head_dim: int, memory: Scratch,
) -> None:  # fmt: skip
    """Scores of queries first..last-1, most of them by fours. Only the first of them fetch `following`."""
    if last - first >= 4:
        first = _scores_4(first, last, low, high, k, places, offset, step, following, stride, head_dim, memory)
        following = step
    if last - first == 3:
        _scores_3(first, last, low, high, k, places, offset, step, following, stride, head_dim, memory)
    elif first < last:
        _scores_1(first, last, low, high, k, places, offset, step, following, stride, head_dim, memory)


@inlined
def weights_of(first: int, last: int, low: int, high: int, memory: Scratch) -> None:
    """Turns scores of queries first..last-1, which see tokens low..high-1, into weights."""
    if low == 0 and high == STEP:
        for i in range(first, last):
            _softmax_step(memory[2], i, 0, STEP, memory[3], memory[4], memory[5])  # constants: no lane is looked at
    else:
        for i in range(first, last):
            _softmax_step(memory[2], i, low, high, memory[3], memory[4], memory[5])


@inlined
def values_of(
    first: int, last: int, low: int, high: int, v: Numbers, places: I64, offset: int, step: int, following: int, head_dim: int,
    memory: Scratch,
) -> None:  # fmt: skip
    """Queries first..last-1 add the values of tokens low..high-1 with their weights; what they summed before shrinks first."""
    if last - first >= 4:
        first = _values_4(first, last, low, high, 0, v, places, offset, step, following, head_dim, memory)
        following = step
    if last - first == 3:
        _values_3(first, last, low, high, 0, v, places, offset, step, following, head_dim, memory)
    elif first < last:
        _values_1(first, last, low, high, 0, v, places, offset, step, following, head_dim, memory)


@inlined
def rising_values_of(
    group: int, first: int, last: int, low: int, high: int, v: Numbers, places: I64, offset: int, step: int, head_dim: int,
    memory: Scratch,
) -> None:  # fmt: skip
    """The same, where the first `group` of queries sees tokens low..high-1, and each further one a token more."""
    if group == 4:
        _values_4(first, last, low, high, 1, v, places, offset, step, step, head_dim, memory)
    elif group == 3:
        _values_3(first, last, low, high, 1, v, places, offset, step, step, head_dim, memory)
    elif group == 1:
        _values_1(first, last, low, high, 1, v, places, offset, step, step, head_dim, memory)
    else:
        while first < last:
            values_of(first, first + group, low, high, v, places, offset, step, step, head_dim, memory)
            first, high = first + group, min(high + 1, STEP)
