"""Copies whole blocks inside one layer's cache: copy-on-write when sequences that share a block part."""

import numpy as np

from kernels.layout import F32, I32


def copy_blocks(k_BKDP: F32, *, v_BKPD: F32, src_M: I32, dst_M: I32) -> None:
    """Block dst[i] = block src[i], every source read before any destination is written.

    Raises:
        ValueError: lengths differ, a block is not in the cache, or two copies write the same block.
    """
    if src_M.shape != dst_M.shape or src_M.ndim != 1:
        raise ValueError(f"copies pair up sources and destinations, got {src_M.shape} and {dst_M.shape}")
    if not src_M.size:
        return
    num_blocks = k_BKDP.shape[0]
    if min(src_M.min(), dst_M.min()) < 0 or max(src_M.max(), dst_M.max()) >= num_blocks:
        raise ValueError(f"a copied block is not in the cache of {num_blocks} blocks")
    if np.unique(dst_M).size != dst_M.size:
        raise ValueError("two copies write the same block")
    k_BKDP[dst_M] = k_BKDP[src_M]
    v_BKPD[dst_M] = v_BKPD[src_M]
