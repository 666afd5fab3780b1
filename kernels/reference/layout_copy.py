"""Rows of a dense cohort, put down at their leads: what layouts A and B copy, on any array of keys or of values."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.layout import BLOCK_SIZE, I32

F64 = NDArray[np.float64]


def put_row(run_KLD: F64, *, lead: int, columns: int) -> F64:
    """[K, Y, D]: zeros but for the run, which begins at column `lead`; NaN throughout if it does not fit."""
    heads, length, dim = run_KLD.shape
    if lead < 0 or lead + length > columns:
        return np.full((heads, columns, dim), np.nan)
    member = np.zeros((heads, columns, dim))
    member[:, lead : lead + length] = run_KLD
    return member


def dense_run(source_MKYD: NDArray[Any], *, member: int, start: int, length: int) -> F64:
    """[K, L, D]: columns start to start + length of a member; NaN where there are none."""
    num_members, heads, _, dim = source_MKYD.shape
    run = np.full((heads, length, dim), np.nan)
    if 0 <= member < num_members and start >= 0:
        there = source_MKYD[member, :, start : start + length]
        run[:, : there.shape[1]] = there
    return run


def paged_run(source_BKPD: NDArray[Any], *, table_W: I32, length: int) -> F64:
    """[K, L, D]: a row's first tokens, out of its blocks; NaN where there are none."""
    run = np.full((source_BKPD.shape[1], length, source_BKPD.shape[3]), np.nan)
    for position in range(length):
        index, place = divmod(position, BLOCK_SIZE)
        block = int(table_W[index]) if index < len(table_W) else -1
        if 0 <= block < len(source_BKPD):
            run[:, position] = source_BKPD[block, :, place]
    return run
