"""Between the q, k, v projection and attention: per-head norms where a model has them, rotary positions, the paged cache write."""

from typing import Any

import numpy as np

from kernels.cpu.crew import helpers, together
from kernels.cpu.jit import borrowing, inlined, jit
from kernels.cpu.lanes import WIDTH, add, broadcast, load, mul, store, sub
from kernels.cpu.numbers import put, put_all, spread
from kernels.cpu.rms_norm import inverse_rms
from kernels.cpu.team import new_team, take_rows
from kernels.layout import BLOCK_SIZE, F32, I32, I64, KvArray, Numbers, bits_of, check_array, check_cache

SERIAL_ELEMENTS = 1 << 12
"""Elements of q, k and v under which waking other threads costs more than it brings."""
TOKENS_AT_ONCE = 32
"""Two blocks of the cache: keys of neighbouring tokens lie side by side, and threads should not write into the same cache line."""
FEW_TOKENS = 128
"""Below this, as when rows decode and no two tokens are neighbours, threads take LESS_AT_ONCE tokens."""
LESS_AT_ONCE = 4


@inlined
def _rotated_head(
    source: F32, at: int, head_dim: int, weight: F32, eps: np.float32, cos: F32, sin: F32, position: int, out: F32, to: int
) -> None:
    """out.flat[to : to + head_dim] = rotate(norm(source.flat[at : at + head_dim])); elements behind the table's width are not
    rotated. By sixteens where halves and heads consist of them: the same bits."""
    half = cos.shape[1]
    if half % WIDTH or head_dim % WIDTH:
        _rotated_one_by_one(source, at, head_dim, weight, eps, cos, sin, position, out.reshape(-1)[to : to + head_dim])
        return
    if weight.shape[0]:
        factor = broadcast(inverse_rms(source, at, head_dim, eps))
        for d in range(0, head_dim, WIDTH):
            store(out, to + d, mul(mul(load(source, at + d), factor), load(weight, d)))
        _rotated_by_sixteens(out, to, head_dim, cos, sin, position, out, to)
    else:
        _rotated_by_sixteens(source, at, head_dim, cos, sin, position, out, to)


@inlined
def _rotated_by_sixteens(source: F32, at: int, head_dim: int, cos: F32, sin: F32, position: int, out: F32, to: int) -> None:
    half = cos.shape[1]
    table = position * half
    for i in range(0, half, WIDTH):
        low, high, c, s = load(source, at + i), load(source, at + half + i), load(cos, table + i), load(sin, table + i)
        store(out, to + i, sub(mul(low, c), mul(high, s)))
        store(out, to + half + i, add(mul(high, c), mul(low, s)))
    for d in range(2 * half, head_dim, WIDTH):
        store(out, to + d, load(source, at + d))


@borrowing
def _rotated_one_by_one(
    source: F32, at: int, head_dim: int, weight: F32, eps: np.float32, cos: F32, sin: F32, position: int, out: F32
) -> None:
    flat = source.reshape(-1)
    if weight.shape[0]:
        factor = inverse_rms(source, at, head_dim, eps)
        for d in range(head_dim):
            out[d] = flat[at + d] * factor * weight[d]
    else:
        for d in range(head_dim):
            out[d] = flat[at + d]
    half = cos.shape[1]
    for i in range(half):
        low, high = out[i], out[half + i]
        out[i] = low * cos[position, i] - high * sin[position, i]
        out[half + i] = high * cos[position, i] + low * sin[position, i]


@inlined
def _numbers(source: F32, at: int, count: int, out: Numbers, to: int) -> None:
    """out.flat[to : to + count] = source.flat[at : at + count], in the type of the cache."""
    flat = source.reshape(-1)
    whole = count // WIDTH * WIDTH
    for d in range(0, whole, WIDTH):
        put_all(out, to + d, load(source, at + d))
    for d in range(whole, count):
        put(out, to + d, flat[at + d])


@borrowing
def _token(
    t: int,
    qkv: F32,
    cos: F32,
    sin: F32,
    positions: I32,
    slots: I32,
    q_weight: F32,
    k_weight: F32,
    eps: np.float32,
    k_cache: Numbers,
    v_cache: Numbers,
    key: F32,
    stored: Numbers,
    q: F32,
) -> None:
    """`key`, `stored`: memory for one head, as it is computed and as it is kept."""
    num_heads, head_dim = q.shape[1], q.shape[2]
    num_kv_heads = k_cache.shape[1]
    position, slot = int(positions[t]), int(slots[t])
    if position < 0 or position >= cos.shape[0] or slot >= k_cache.shape[0] * BLOCK_SIZE:
        q[t] = np.float32(np.nan)
        return
    at, to = t * qkv.shape[1], t * num_heads * head_dim
    for head in range(num_heads):
        _rotated_head(qkv, at + head * head_dim, head_dim, q_weight, eps, cos, sin, position, q, to + head * head_dim)
    if slot < 0:
        return
    block, place = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    for head in range(num_kv_heads):
        _rotated_head(qkv, at + (num_heads + head) * head_dim, head_dim, k_weight, eps, cos, sin, position, key, 0)
        _numbers(key, 0, head_dim, stored, 0)
        start = (block * num_kv_heads + head) * head_dim * BLOCK_SIZE
        spread(k_cache, start + place, BLOCK_SIZE, stored, 0, head_dim)
        _numbers(qkv, at + (num_heads + num_kv_heads + head) * head_dim, head_dim, v_cache, start + place * head_dim)


@jit
def _tokens(
    team: I64,
    qkv: F32,
    cos: F32,
    sin: F32,
    positions: I32,
    slots: I32,
    q_weight: F32,
    k_weight: F32,
    eps: np.float32,
    k_cache: Numbers,
    v_cache: Numbers,
    q: F32,
) -> None:
    at_once = TOKENS_AT_ONCE if qkv.shape[0] >= FEW_TOKENS else LESS_AT_ONCE
    key = np.empty(q.shape[2], np.float32)
    stored: Any = np.empty(q.shape[2], k_cache.dtype)
    first, last = take_rows(team, qkv.shape[0], at_once)
    while first < last:
        for t in range(first, last):
            _token(t, qkv, cos, sin, positions, slots, q_weight, k_weight, eps, k_cache, v_cache, key, stored, q)
        first, last = take_rows(team, qkv.shape[0], at_once)


@jit
def _all_tokens(board: I64, most: int, *args: Any) -> None:
    together(board, most, _tokens, args)


def _check(qkv_TC: F32, cos_LE: F32, sin_LE: F32, positions_T: I32, slot_mapping_T: I32, q_TND: F32, num_kv_heads: int) -> None:
    check_array("qkv_TC", qkv_TC, dtype=np.float32, ndim=2)
    check_array("q_TND", q_TND, dtype=np.float32, ndim=3)
    check_array("cos_LE", cos_LE, dtype=np.float32, ndim=2)
    check_array("sin_LE", sin_LE, dtype=np.float32, ndim=2)
    check_array("positions_T", positions_T, dtype=np.int32, ndim=1)
    check_array("slot_mapping_T", slot_mapping_T, dtype=np.int32, ndim=1)
    num_tokens, num_heads, head_dim = q_TND.shape
    if qkv_TC.shape != (num_tokens, (num_heads + 2 * num_kv_heads) * head_dim):
        raise ValueError(
            f"qkv {qkv_TC.shape} does not hold {num_heads} + 2 x {num_kv_heads} heads of {head_dim} for {num_tokens} tokens"
        )
    if positions_T.shape[0] != num_tokens or slot_mapping_T.shape[0] != num_tokens:
        raise ValueError(f"{num_tokens} tokens, {positions_T.shape[0]} positions, {slot_mapping_T.shape[0]} slots")
    if cos_LE.shape != sin_LE.shape or 2 * cos_LE.shape[1] > head_dim:
        raise ValueError(f"rotary tables {cos_LE.shape} and {sin_LE.shape} do not fit head size {head_dim}")


def rope_kv_write(
    qkv_TC: F32,
    *,
    cos_LE: F32,
    sin_LE: F32,
    positions_T: I32,
    slot_mapping_T: I32,
    k_BKDP: KvArray,
    v_BKPD: KvArray,
    q_TND: F32,
    q_norm_D: F32 | None = None,
    k_norm_D: F32 | None = None,
    eps: float = 0.0,
) -> None:
    """Writes rotated queries into `q_TND`, and keys (rotated) and values into the cache slots of their tokens.

    Args:
        qkv_TC: the fused projection, a row is all q heads, then k heads, then v heads (C = (N + 2 K) D).
        cos_LE, sin_LE: by position and rotary pair (E pairs); element i is rotated with element E + i, those behind 2 E are kept.
        positions_T: i32; a position outside the table makes that token's query NaN and writes nothing.
        slot_mapping_T: i32, block id * 16 + place in it; no two alike; -1 = do not write; behind the cache: as a bad position.
        q_norm_D, k_norm_D: weights of per-head norms before the rotation; None = no norm. `eps` is theirs.

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    check_cache(k_BKDP, v_BKPD, num_heads=q_TND.shape[1], head_dim=q_TND.shape[2])
    _check(qkv_TC, cos_LE, sin_LE, positions_T, slot_mapping_T, q_TND, k_BKDP.shape[1])
    none = np.empty(0, np.float32)
    weights = [none if weight is None else weight for weight in (q_norm_D, k_norm_D)]
    for name, weight in zip(("q_norm_D", "k_norm_D"), weights, strict=True):
        check_array(name, weight, dtype=np.float32, ndim=1)
        if weight.shape[0] not in (0, q_TND.shape[2]):
            raise ValueError(f"{name} has {weight.shape[0]} weights for head size {q_TND.shape[2]}")
    _all_tokens(
        *helpers(worth_it=qkv_TC.size >= SERIAL_ELEMENTS),
        new_team(1),
        qkv_TC,
        cos_LE,
        sin_LE,
        positions_T,
        slot_mapping_T,
        weights[0],
        weights[1],
        np.float32(eps),
        bits_of(k_BKDP),
        bits_of(v_BKPD),
        q_TND,
    )
