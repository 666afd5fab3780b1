"""Root-mean-square norm of rows, alone or after adding to the residual. A row's sum has one fixed order: 16 lanes, then a tree."""

from typing import Any

import numpy as np

from kernels.cpu import lanes
from kernels.cpu.crew import helpers, together
from kernels.cpu.jit import jit
from kernels.cpu.team import new_team, take_rows
from kernels.layout import F32, I64, check_array

SERIAL_ELEMENTS = 1 << 18
"""Elements under which waking other threads costs more than it brings."""
ROWS_AT_ONCE = 8


@jit
def inverse_rms(x: F32, start: int, size: int, eps: np.float32) -> Any:
    """1 / sqrt(mean(x.flat[start : start + size] ** 2) + eps), of a C-contiguous array."""
    total = lanes.broadcast(np.float32(0))
    whole = size // 16 * 16
    for at in range(start, start + whole, 16):
        part = lanes.load(x, at)
        total = lanes.fused(part, part, total)
    square = lanes.sum_lanes(total)
    flat = x.reshape(-1)
    for at in range(start + whole, start + size):
        square += flat[at] * flat[at]
    return np.float32(1) / np.sqrt(square / np.float32(size) + np.float32(eps))


@jit
def norm_row(x: F32, weight: F32, eps: np.float32, row: int, out: F32) -> None:
    """One row of `rms_norm`."""
    size = x.shape[1]
    factor = inverse_rms(x, row * size, size, eps)
    for i in range(size):
        out[row, i] = x[row, i] * factor * weight[i]


@jit
def add_norm_row(x: F32, residual: F32, weight: F32, eps: np.float32, row: int, out: F32) -> None:
    """One row of `add_rms_norm`."""
    for i in range(x.shape[1]):
        residual[row, i] += x[row, i]
    norm_row(residual, weight, eps, row, out)


@jit
def _norm(team: I64, x: F32, weight: F32, eps: np.float32, out: F32) -> None:
    first, last = take_rows(team, x.shape[0], ROWS_AT_ONCE)
    while first < last:
        for row in range(first, last):
            norm_row(x, weight, eps, row, out)
        first, last = take_rows(team, x.shape[0], ROWS_AT_ONCE)


@jit
def _norm_all(board: I64, most: int, *args: Any) -> None:
    together(board, most, _norm, args)


@jit
def _add_norm(team: I64, x: F32, residual: F32, weight: F32, eps: np.float32, out: F32) -> None:
    first, last = take_rows(team, x.shape[0], ROWS_AT_ONCE)
    while first < last:
        for row in range(first, last):
            add_norm_row(x, residual, weight, eps, row, out)
        first, last = take_rows(team, x.shape[0], ROWS_AT_ONCE)


@jit
def _add_norm_all(board: I64, most: int, *args: Any) -> None:
    together(board, most, _add_norm, args)


def _check(x_TH: F32, weight_H: F32, out_TH: F32) -> None:
    check_array("x_TH", x_TH, dtype=np.float32, ndim=2)
    check_array("weight_H", weight_H, dtype=np.float32, ndim=1)
    check_array("out_TH", out_TH, dtype=np.float32, ndim=2)
    if x_TH.shape != out_TH.shape or weight_H.shape[0] != x_TH.shape[1]:
        raise ValueError(f"shapes do not fit: x {x_TH.shape}, weight {weight_H.shape}, out {out_TH.shape}")


def rms_norm(x_TH: F32, *, weight_H: F32, eps: float, out_TH: F32) -> None:
    """out = x / rms(x) * weight; `out_TH` may be `x_TH`. Raises ValueError when shapes, types or memory order do not fit."""
    _check(x_TH, weight_H, out_TH)
    _norm_all(*helpers(worth_it=x_TH.size >= SERIAL_ELEMENTS), new_team(1), x_TH, weight_H, np.float32(eps), out_TH)


def add_rms_norm(x_TH: F32, *, residual_TH: F32, weight_H: F32, eps: float, out_TH: F32) -> None:
    """residual += x; out = residual / rms(residual) * weight. `out_TH` may be `x_TH`, not `residual_TH`. Raises as `rms_norm`."""
    _check(x_TH, weight_H, out_TH)
    check_array("residual_TH", residual_TH, dtype=np.float32, ndim=2)
    if residual_TH.shape != x_TH.shape:
        raise ValueError(f"residual {residual_TH.shape} is not shaped like x {x_TH.shape}")
    args = (x_TH, residual_TH, weight_H, np.float32(eps), out_TH)
    _add_norm_all(*helpers(worth_it=x_TH.size >= SERIAL_ELEMENTS), new_team(1), *args)
