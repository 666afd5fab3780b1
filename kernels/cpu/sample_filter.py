"""min_p, top_k and top_p as one cut: the last token that is kept, in the order (logit descending, id ascending).

Each filter keeps a beginning of that order, so together they keep the shortest. Nothing is sorted: a vector pass collects the
likely tokens, a radix search among them finds the one at which a count or a mass is reached. Exact for counts and ties; masses are
float64 sums of float32 weights.
"""

from typing import Any

import numpy as np

from kernels.cpu import lanes
from kernels.cpu.exponential import exp
from kernels.cpu.jit import inlined, jit
from kernels.cpu.logprobs import CHUNK
from kernels.layout import F32

FLOORS = (-10.0, -20.0, -60.0, -1e38)
"""How far below the greatest logit tokens are collected, tried in turn; the last leaves out only what cannot be chosen."""
SHIFTS = (21, 10, 0)
BINS = 1 << 11
ZERO = np.float32(0)
MINUS_INFINITY = np.float32(-np.inf)


@jit
def _collect(logits: F32, top: np.float32, inverse: np.float32, floor: np.float32) -> Any:
    """(ids and weights e^z of tokens with z = (logit - top) / temperature >= floor, mass of all tokens)."""
    size = logits.shape[0]
    ids, weights, num, mass = np.empty(size, np.int64), np.empty(size, np.float64), 0, 0.0
    z, w = np.empty(16, np.float32), np.empty(16, np.float32)
    for chunk in range(0, size, CHUNK):
        total = lanes.broadcast(ZERO)
        for at in range(chunk, min(chunk + CHUNK, size), 16):
            lane = lanes.load_up_to(logits, at, size - at, MINUS_INFINITY)
            scaled = lanes.mul(lanes.sub(lane, lanes.broadcast(top)), lanes.broadcast(inverse))
            weight = exp(scaled)
            total = lanes.add(total, weight)
            if lanes.any_at_least(scaled, lanes.broadcast(floor)):
                lanes.store(z, 0, scaled)
                lanes.store(w, 0, weight)
                for i in range(min(16, size - at)):
                    if z[i] >= floor:
                        ids[num], weights[num] = at + i, np.float64(w[i])
                        num += 1
        mass += np.float64(lanes.sum_lanes(total))
    return ids[:num], weights[:num], mass


@inlined
def _descending_keys(logits: F32, ids: Any) -> Any:
    """Integers of 32 bits in the order of the logits; equal logits, 0 and -0 too, have equal keys."""
    values = np.empty(ids.shape[0], np.float32)
    for i in range(ids.shape[0]):
        values[i] = logits[ids[i]] + ZERO
    bits = values.view(np.int32)
    keys = np.empty(ids.shape[0], np.int64)
    for i in range(ids.shape[0]):
        pattern = np.int64(bits[i])
        keys[i] = pattern + (1 << 31) if pattern >= 0 else -pattern - 1
    return keys


@jit
def _reach(keys: Any, amounts: Any, target: float) -> int:
    """Where, in descending order of keys and then ascending place, the sum of amounts reaches `target`; else the last."""
    before = 0.0
    members = np.arange(keys.shape[0])
    for shift in SHIFTS:
        sums, filled = np.zeros(BINS, np.float64), np.zeros(BINS, np.bool_)
        lowest = BINS
        for place in members:
            which = (keys[place] >> shift) & (BINS - 1)
            sums[which] += amounts[place]
            filled[which] = True
            lowest = min(lowest, which)
        chosen = BINS - 1
        while chosen > lowest and (not filled[chosen] or before + sums[chosen] < target):
            before += sums[chosen]
            chosen -= 1
        num = 0
        for place in members:
            if (keys[place] >> shift) & (BINS - 1) == chosen:
                members[num] = place
                num += 1
        members = members[:num]
    for place in members:
        before += amounts[place]
        if before >= target:
            return int(place)
    return int(members[-1])


@jit
def _keep_to(keys: Any, weights: Any, last: int) -> float:
    """Sets weights behind place `last` of the order to 0; the mass that is left."""
    mass = 0.0
    for place in range(keys.shape[0]):
        if keys[place] < keys[last] or (keys[place] == keys[last] and place > last):
            weights[place] = 0.0
        mass += weights[place]
    return mass


@jit
def _likely(logits: F32, top: np.float32, inverse: np.float32, top_k: int, top_p: np.float32, min_p: np.float32) -> Any:
    """(ids, weights, mass) of enough tokens to hold the cut, without those below min_p; top_p without top_k is a part of `mass`."""
    for floor in FLOORS:
        ids, weights, mass = _collect(logits, top, inverse, np.float32(floor))
        if min_p > np.exp(floor):
            num, mass = 0, 0.0
            for i in range(ids.shape[0]):
                if weights[i] >= min_p:
                    ids[num], weights[num] = ids[i], weights[i]
                    mass += weights[i]
                    num += 1
            return ids[:num], weights[:num], mass
        if top_k > 0:
            if top_k <= ids.shape[0]:
                break
        elif min_p <= ZERO and weights.sum() >= np.float64(top_p) * mass:
            break
    return ids, weights, mass


@jit
def cut(logits: F32, top: np.float32, inverse: np.float32, top_k: int, top_p: np.float32, min_p: np.float32) -> Any:
    """(logit, id) of the last kept token of a row whose greatest logit is `top`; `inverse` is 1 / temperature.

    Order: min_p against the likeliest token, then top_k, then top_p of the mass that is left. The likeliest token always stays.
    """
    if top_k >= logits.shape[0]:
        top_k = 0
    ids, weights, mass = _likely(logits, top, inverse, top_k, top_p, min(min_p, np.float32(1)))
    keys = _descending_keys(logits, ids)
    last = _reach(keys, np.ones(keys.shape[0], np.float64), np.float64(top_k if top_k > 0 else keys.shape[0]))
    if 0 < top_k < keys.shape[0]:
        mass = _keep_to(keys, weights, last)
    if top_p < np.float32(1):
        place = _reach(keys, weights, np.float64(top_p) * mass)
        if keys[place] > keys[last] or (keys[place] == keys[last] and place < last):
            last = place
    return logits[ids[last]], ids[last]
