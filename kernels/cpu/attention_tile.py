"""The inside of attention: neighbouring queries of one row and one kv head, walked over the row's keys 64 by 64, 4 blocks a step.

A query's arithmetic is fixed by its own position and the cache's content alone: steps in order of absolute position; scores with
one lane a token, the head dimension summed in parts of 32; one online softmax step for 64 tokens; values added token by token. How
many queries share what is loaded, how many vectors of it at once, where it lies and which thread takes it, changes no bit.
"""

import numpy as np

from kernels.cpu.attention_step import (
    BLOCKS,
    MINUS_INFINITY,
    NAN,
    ONE,
    STEP,
    ZERO,
    Scratch,
    rising_values_of,
    scores_of,
    values_of,
    weights_of,
)
from kernels.cpu.jit import inlined
from kernels.cpu.lanes import broadcast, load, mul, store, sum_lanes
from kernels.layout import BLOCK_SIZE, F32, I64, Numbers

Seen = tuple[int, int, int]
"""The first token's position and that of the first key there is, both from the step's first; window, 0 = none."""


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
def _is_nowhere(places: I64, start: int, stop: int) -> bool:
    """Whether one of these tiles has no place."""
    nowhere = False
    for tile in range(start, stop):
        nowhere |= places[tile, 0] < 0 or places[tile, 1] < 0
    return nowhere


@inlined
def _sees(token: int, seen: Seen) -> tuple[int, int]:
    """The first place of a step that a token sees, and the one behind the last."""
    position, begin, window = seen
    low = max(0, begin, position + token - window + 1) if window > 0 else max(0, begin)
    return low, min(STEP, position + token + 1)


@inlined
def _edge(
    count: int, group: int, seen: Seen, v: Numbers, places: I64, offset: int, step: int, head_dim: int, memory: Scratch
) -> None:
    """Weights and values of `count` tokens where some see only a part of a step. What all see they take together, then each its own
    rest: no weight of 0 may meet a value that its token must not see."""
    low, shared = _sees(0, seen)
    alike = shared > low and _sees(count - 1, seen)[0] == low
    for i in range(count):
        own_low, own_high = _sees(i, seen)
        if own_low < own_high:
            weights_of(i * group, (i + 1) * group, own_low, own_high, memory)
            if not alike:
                values_of(i * group, (i + 1) * group, own_low, own_high, v, places, offset, step, step, head_dim, memory)
    if alike:
        values_of(0, count * group, low, shared, v, places, offset, step, step, head_dim, memory)
        memory[5][: count * group] = ONE  # shrunk by now
        rising_values_of(group, group, count * group, shared, shared + 1, v, places, offset, step, head_dim, memory)


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
    if stop > places.shape[0] or _is_nowhere(places, start, stop):
        out[first:last, head * group : (head + 1) * group] = NAN
        return
    _start(q, first, last, head, group, scale, memory)
    offset, stride = head * strides[0], strides[1]
    for step in range(start // BLOCKS, (stop + BLOCKS - 1) // BLOCKS):
        base = step * STEP
        whole = position - base >= STEP - 1 and begin <= base and (window <= 0 or final - window + 1 <= base)
        following = step + 1 if (step + 2) * BLOCKS <= stop else step
        below = max(begin, position - window + 1 if window > 0 else 0) - base  # what the first token sees, and all that any does
        above = min(STEP, final + 1 - base)
        if below >= STEP or above <= 0:
            continue
        scores_of(0, (last - first) * group, max(0, below), above, k, places, offset, step, following, stride, head_dim, memory)
        if whole:
            weights_of(0, (last - first) * group, 0, STEP, memory)
            values_of(0, (last - first) * group, 0, STEP, v, places, offset, step, following, head_dim, memory)
        else:
            seen = position - base, begin - base, window
            _edge(last - first, group, seen, v, places, offset, step, head_dim, memory)
    _finish(first, last, head, group, memory, out)
