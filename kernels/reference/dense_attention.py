"""Attention over a dense cohort, with the dead prefix masked away."""

import numpy as np
from numpy.typing import NDArray

from kernels.layout import F32, I32
from kernels.reference.ragged_mask import ragged_mask


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
    window: int = 0,
) -> NDArray[np.float64]:
    """Attention of every query token over its row's keys; meanings as in the CPU twin, valid input with leads from 0 up only."""
    out = np.zeros(q_TND.shape, np.float64)
    for row, (context_len, member, lead) in enumerate(zip(context_len_R, member_R, lead_R, strict=True)):
        first, last = query_start_R[row], query_start_R[row + 1]
        fed = int(last - first)
        if not 0 < fed <= context_len:
            continue
        past, width = int(context_len) - fed, int(lead + context_len) - fed
        mask = ragged_mask(np.array([past], np.int32), width=width, num_queries=fed, window=window)[0, 0].astype(np.float64)
        seen = mask == 0  # what must not be seen may be anything, even NaN
        keys = k_MKDY[member, :, :, : width + fed].astype(np.float64)
        values = v_MKYD[member, :, : width + fed].astype(np.float64)
        q = q_TND[first:last].astype(np.float64).reshape(fed, keys.shape[0], -1, q_TND.shape[2])
        scores = np.where(seen[:, None, None], np.einsum("tkgd,kdy->tkgy", q, np.where(seen.any(0), keys, 0)) * scale, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("tkgy,kyd->tkgd", weights, np.where(seen.any(0)[None, :, None], values, 0))
        out[first:last] = (mixed / weights.sum(-1)[..., None]).reshape(fed, *q_TND.shape[1:])
    return out
