"""Paged attention over ragged rows, one query token at a time."""

import numpy as np
from numpy.typing import NDArray

from kernels.layout import BLOCK_SIZE, F32, I32

F64 = NDArray[np.float64]


def _attend(q_ND: F32, k_MKD: F32, v_MKD: F32, scale: float) -> F64:
    """One token over M keys."""
    q = q_ND.astype(np.float64).reshape(k_MKD.shape[1], -1, q_ND.shape[1])
    scores = np.einsum("kgd,mkd->kgm", q, k_MKD.astype(np.float64)) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed: F64 = np.einsum("kgm,mkd->kgd", weights / weights.sum(-1, keepdims=True), v_MKD.astype(np.float64))
    return mixed.reshape(q_ND.shape)


def paged_attention(
    q_TND: F32,
    *,
    k_BKDP: F32,
    v_BKPD: F32,
    query_start_R: I32,
    context_len_R: I32,
    block_tables_RW: I32,
    scale: float,
    window: int = 0,
    begin: int = 0,
) -> F64:
    """Attention of every query token over its row's keys; meanings as in the CPU twin, valid input only."""
    out = np.zeros(q_TND.shape, np.float64)
    for row, context_len in enumerate(context_len_R):
        first, last = query_start_R[row], query_start_R[row + 1]
        if context_len < last - first or context_len == 0:
            continue
        blocks = block_tables_RW[row, : -(-context_len // BLOCK_SIZE)]
        keys = k_BKDP[blocks].transpose(0, 3, 1, 2).reshape(-1, k_BKDP.shape[1], q_TND.shape[2])
        values = v_BKPD[blocks].transpose(0, 2, 1, 3).reshape(keys.shape)
        for token in range(first, last):
            seen = context_len - last + token + 1
            start = max(begin, seen - window) if window else begin
            if start >= seen:
                continue
            out[token] = _attend(q_TND[token], keys[start:seen], values[start:seen], scale)
    return out
