"""Shapes that the kernels and whoever owns the cache agree on, and the array types of their signatures.

A layer's cache of B blocks, K kv heads, head size D and P = BLOCK_SIZE token positions is two arrays: keys `k_BKDP`, transposed
inside the block so that scores have one lane a token, and values `v_BKPD`. The suffix legend is in README.md.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
KvArray = NDArray[np.floating[Any]]
"""Keys or values: float32, or float16 where their memory is worth more than their last bits."""
Numbers = NDArray[np.floating[Any]] | NDArray[np.uint16]
"""The same as numba sees it."""

BLOCK_SIZE = 16
"""Token positions of a block; also the lanes of a kernel and the tile in which attention is reduced."""


def cache_shapes(num_blocks: int, *, num_kv_heads: int, head_dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of one layer's key cache and value cache."""
    return (num_blocks, num_kv_heads, head_dim, BLOCK_SIZE), (num_blocks, num_kv_heads, BLOCK_SIZE, head_dim)


def check_array(name: str, array: NDArray[np.generic], *, dtype: type, ndim: int) -> None:
    """Raises ValueError unless the array is C-contiguous, of this type and number of dimensions: kernels index raw memory."""
    if array.dtype != dtype or array.ndim != ndim or not array.flags.c_contiguous:
        raise ValueError(
            f"{name}: want a C-contiguous {dtype.__name__} array of {ndim} dimensions, got {array.dtype} {array.shape}"
        )


def bits_of(array: KvArray) -> Numbers:
    """The array for a kernel, which knows float16 by its bits only: a view."""
    numbers: Numbers = array.view(np.uint16) if array.dtype == np.float16 else array
    return numbers


def check_kv(name: str, array: KvArray, *, ndim: int) -> None:
    """Raises ValueError unless the array is C-contiguous, of so many dimensions, and float32 or float16."""
    check_array(name, array, dtype=np.float16 if array.dtype == np.float16 else np.float32, ndim=ndim)


def check_cache(k_BKDP: KvArray, v_BKPD: KvArray, *, num_heads: int, head_dim: int) -> None:
    """Raises ValueError unless both arrays are one layer's cache that serves these heads."""
    check_kv("k_BKDP", k_BKDP, ndim=4)
    check_kv("v_BKPD", v_BKPD, ndim=4)
    num_blocks, num_kv_heads = k_BKDP.shape[:2]
    if (k_BKDP.shape, v_BKPD.shape) != cache_shapes(num_blocks, num_kv_heads=num_kv_heads, head_dim=head_dim):
        raise ValueError(f"cache shapes {k_BKDP.shape} and {v_BKPD.shape} do not fit head size {head_dim}")
    if not num_kv_heads or num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads do not share {num_kv_heads} kv heads evenly")


def check_rows(query_start_R: I32, context_len_R: I32, block_tables_RW: I32) -> None:
    """Raises ValueError unless rows and tables agree in shape."""
    for name, array, ndim in (
        ("query_start_R", query_start_R, 1),
        ("context_len_R", context_len_R, 1),
        ("block_tables_RW", block_tables_RW, 2),
    ):
        check_array(name, array, dtype=np.int32, ndim=ndim)
    num_rows = context_len_R.shape[0]
    if query_start_R.shape[0] != num_rows + 1 or block_tables_RW.shape[0] != num_rows:
        raise ValueError(f"query_start {query_start_R.shape} and block_tables {block_tables_RW.shape} do not fit {num_rows} rows")


def check_cohort(q_TND: F32, out_TND: F32, k_MKDY: KvArray, v_MKYD: KvArray) -> None:
    """Raises ValueError unless both arrays are one layer of a dense cohort (M members, Y columns) that serves these queries."""
    check_array("q_TND", q_TND, dtype=np.float32, ndim=3)
    check_array("out_TND", out_TND, dtype=np.float32, ndim=3)
    check_kv("k_MKDY", k_MKDY, ndim=4)
    check_kv("v_MKYD", v_MKYD, ndim=4)
    num_members, num_kv_heads, head_dim, num_columns = k_MKDY.shape
    if v_MKYD.shape != (num_members, num_kv_heads, num_columns, head_dim) or q_TND.shape[2] != head_dim:
        raise ValueError(f"cohort shapes {k_MKDY.shape} and {v_MKYD.shape} do not fit head size {q_TND.shape[2]}")
    if q_TND.shape != out_TND.shape or not num_kv_heads or q_TND.shape[1] % num_kv_heads:
        raise ValueError(f"queries {q_TND.shape}, output {out_TND.shape} do not fit {num_kv_heads} kv heads")
