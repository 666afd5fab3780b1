"""Between the q, k, v projection and attention: per-head norms where a model has them, rotary positions, the paged cache write."""

import numpy as np
from numpy.typing import NDArray

from kernels.layout import BLOCK_SIZE, F32, I32
from kernels.reference.rms_norm import rms_norm

F64 = NDArray[np.float64]


def _rotate(x_TND: F64, cos_TE: F32, sin_TE: F32) -> F64:
    half = cos_TE.shape[1]
    cos, sin = cos_TE[:, None].astype(np.float64), sin_TE[:, None].astype(np.float64)
    low, high, rest = x_TND[..., :half], x_TND[..., half : 2 * half], x_TND[..., 2 * half :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)


def rope_kv_write(
    qkv_TC: F32,
    *,
    cos_LE: F32,
    sin_LE: F32,
    positions_T: I32,
    slot_mapping_T: I32,
    k_BKDP: F64,
    v_BKPD: F64,
    num_heads: int,
    q_norm_D: F32 | None = None,
    k_norm_D: F32 | None = None,
    eps: float = 0.0,
) -> F64:
    """Returns rotated queries [T, N, D], changes the (float64) caches in place; meanings as in the CPU twin, for valid input."""
    num_kv_heads, head_dim = k_BKDP.shape[1:3]
    heads = qkv_TC.reshape(qkv_TC.shape[0], -1, head_dim)
    q, k, v = np.split(heads.astype(np.float64), [num_heads, num_heads + num_kv_heads], axis=1)
    if q_norm_D is not None:
        q = rms_norm(q.astype(np.float32), weight_H=q_norm_D, eps=eps)
    if k_norm_D is not None:
        k = rms_norm(k.astype(np.float32), weight_H=k_norm_D, eps=eps)
    cos, sin = cos_LE[positions_T], sin_LE[positions_T]
    k = _rotate(k, cos, sin)
    for t, slot in enumerate(slot_mapping_T):
        if slot >= 0:
            k_BKDP[slot // BLOCK_SIZE, :, :, slot % BLOCK_SIZE] = k[t]
            v_BKPD[slot // BLOCK_SIZE, :, slot % BLOCK_SIZE] = v[t]
    return _rotate(q, cos, sin)
