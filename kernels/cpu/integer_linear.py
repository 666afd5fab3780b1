"""A linear layer in integers: rows become int8 codes; weights are the file's own 4 or 8 bits in groups, or 8 bits of rotated rows.

A result depends on its row and on the weights alone: integer sums are exact and float32 ones have one order. So a row has the same
bits in a batch of any size, at any place in it, on any number of threads.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.cpu import group_tile
from kernels.cpu import rotated_tile as rotated_tiles
from kernels.cpu.crew import helpers, together
from kernels.cpu.group_tile import FORM, tile_of_4_bits, tile_of_8_bits
from kernels.cpu.jit import inlined, jit
from kernels.cpu.quantise_rows import quantise_rows
from kernels.cpu.rotate_rows import rotate_rows
from kernels.cpu.rotated_tile import GROUP_LINES, rotated_tile
from kernels.cpu.team import done_then_take, new_team, take, wait
from kernels.group_weights import GROUP, GroupWeights, pack
from kernels.layout import F32, I64, check_array
from kernels.packed_weights import I8, ROTATED, U8, U16, PackedWeights
from kernels.rotated_weights import RotatedWeights, block_of, pack_rotated

SERIAL_PRODUCTS = 1 << 23
"""Products under which waking other threads costs more than it brings: 0.02 ms right after another kernel, 0.1 ms otherwise."""
ROWS_TO_ROUND = 4
"""Rows of an item in which inputs are rounded."""
ROWS_AT_ONCE = 32
"""Rows whose codes stay in the first-level cache while the panels of an item pass by."""
ROWS_PER_ITEM = 128
"""Rows of a work item: their codes stay in the second-level cache."""
SERIAL_WEIGHTS = 1 << 16
"""Weights under which they are turned and rounded by one thread."""
OUTPUTS_PER_ITEM = 32
"""Outputs of a work item, some panels: few enough that threads finish together."""
_PANEL = group_tile.PANEL
_ROTATED_PANEL = rotated_tiles.PANEL
_MOST = rotated_tiles.MOST_ROWS
_PART = GROUP_LINES * _MOST // ROWS_AT_ONCE

Matrix = tuple[U8, U16]
"""Codes and scales of `PackedWeights`."""
Rows = tuple[I8, F32]
"""Codes i8 [M, K] and scales f32 [M, G, 2] of `quantise_rows` or `rotate_rows`."""


def _rows_of(tile: Callable[..., None], *, most: int) -> Callable[..., None]:
    """Rows first..last-1 times one panel, with the tile for the weights' bits, of at most so many rows; the first result goes to
    out.flat[place]."""

    def rows_of(weights: Matrix, rows: Rows, panel: int, first: int, last: int, out: F32, place: int, stride: int) -> None:
        codes, scales = weights
        x, x_scales = rows
        groups = x.shape[1] // GROUP
        if most == 8:
            while first + 8 <= last:
                tile(8, codes, scales, x, x_scales, panel, first, groups, out, place, stride)
                first += 8
                place += 8 * stride
        while first + 4 <= last:
            tile(4, codes, scales, x, x_scales, panel, first, groups, out, place, stride)
            first += 4
            place += 4 * stride
        # a row and its drafts are a few rows: each pass over the weights unpacks them once for all of them
        if last - first == 3:
            tile(3, codes, scales, x, x_scales, panel, first, groups, out, place, stride)
        elif last - first == 2:
            tile(2, codes, scales, x, x_scales, panel, first, groups, out, place, stride)
        elif last - first == 1:
            tile(1, codes, scales, x, x_scales, panel, first, groups, out, place, stride)

    return inlined(rows_of)


_rows_of_4_bits = _rows_of(tile_of_4_bits, most=group_tile.MOST_ROWS[4])
_rows_of_8_bits = _rows_of(tile_of_8_bits, most=group_tile.MOST_ROWS[8])


@inlined
def _rows_of_rotated(weights: Matrix, rows: Rows, panel: int, first: int, last: int, out: F32, place: int, stride: int) -> None:
    """The same for rotated weights. Meanwhile memory is asked for the panel after next, which is this thread's next one where two
    take turns: a part of it by each tile where there are many, for a tile alone would wait for all of it."""
    codes, scales = weights
    x, x_scales = rows
    groups = x.shape[1] // GROUP
    line, many = (panel + 2) * groups * GROUP_LINES, last - first > 2 * _MOST
    while first + _MOST <= last:
        if many:
            rotated_tile(_MOST, codes, scales, x, x_scales, panel, first, groups, out, place, stride, line, _PART)
            line += groups * _PART
        else:
            rotated_tile(_MOST, codes, scales, x, x_scales, panel, first, groups, out, place, stride, line, GROUP_LINES)
        first += _MOST
        place += _MOST * stride
    if first + 4 <= last:
        rotated_tile(4, codes, scales, x, x_scales, panel, first, groups, out, place, stride, line, GROUP_LINES)
        first += 4
        place += 4 * stride
    if last - first == 3:
        rotated_tile(3, codes, scales, x, x_scales, panel, first, groups, out, place, stride, line, GROUP_LINES)
    elif last - first == 2:
        rotated_tile(2, codes, scales, x, x_scales, panel, first, groups, out, place, stride, line, GROUP_LINES)
    elif last - first == 1:
        rotated_tile(1, codes, scales, x, x_scales, panel, first, groups, out, place, stride, line, GROUP_LINES)


@jit
def _panel(kind: int) -> int:
    """Outputs of a panel."""
    return _ROTATED_PANEL if kind == ROTATED else _PANEL


@jit
def _num_items(num_rows: int, num_out: int) -> int:
    """Items that a product of so many rows and outputs is cut into."""
    return (num_rows + ROWS_PER_ITEM - 1) // ROWS_PER_ITEM * ((num_out + OUTPUTS_PER_ITEM - 1) // OUTPUTS_PER_ITEM)


@jit
def _run_item(item: int, weights: Matrix, kind: int, rows: Rows, spare: F32, out: F32) -> None:
    """Some panels for some rows. A last panel that is wider than the output goes through `spare`, f32 [ROWS_AT_ONCE, panel]."""
    num_rows, num_out = out.shape
    width = _panel(kind)
    items_across = (num_out + OUTPUTS_PER_ITEM - 1) // OUTPUTS_PER_ITEM
    row, output = item // items_across * ROWS_PER_ITEM, item % items_across * OUTPUTS_PER_ITEM
    last_row = min(row + ROWS_PER_ITEM, num_rows)
    for first in range(row, last_row, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, last_row)
        for at in range(output, min(output + OUTPUTS_PER_ITEM, num_out), width):
            to, place, stride = out, first * num_out + at, num_out
            if num_out - at < width:
                to, place, stride = spare, 0, width
            if kind == 4:
                _rows_of_4_bits(weights, rows, at // width, first, last, to, place, stride)
            elif kind == 8:
                _rows_of_8_bits(weights, rows, at // width, first, last, to, place, stride)
            else:
                _rows_of_rotated(weights, rows, at // width, first, last, to, place, stride)
            if num_out - at < width:
                out[first:last, at:] = spare[: last - first, : num_out - at]


@jit
def round_some(x: F32, first: int, last: int, kind: int, rows: Rows) -> None:
    """Rows first..last-1 of `x` become `rows`, for weights of a kind."""
    if kind == ROTATED:
        rotate_rows(x, first, last, rows[0], rows[1])
    else:
        quantise_rows(x, first, last, rows[0], rows[1])


@jit
def round_rows(team: I64, phase: int, x: F32, kind: int, rows: Rows) -> None:
    """A phase of a team: `x` becomes `rows`."""
    count = (x.shape[0] + ROWS_TO_ROUND - 1) // ROWS_TO_ROUND
    item = take(team, phase)
    while item < count:
        round_some(x, item * ROWS_TO_ROUND, min((item + 1) * ROWS_TO_ROUND, x.shape[0]), kind, rows)
        item = done_then_take(team, phase)
    wait(team, phase, count)


@jit
def multiply(team: I64, phase: int, rows: Rows, weights: Matrix, kind: int, out: F32) -> None:
    """A phase of a team: out = rows W^T."""
    count = _num_items(out.shape[0], out.shape[1])
    spare = np.empty((ROWS_AT_ONCE, _panel(kind)), np.float32)
    item = take(team, phase)
    while item < count:
        _run_item(item, weights, kind, rows, spare, out)
        item = done_then_take(team, phase)
    wait(team, phase, count)


@jit
def _run(team: I64, x: F32, weights: Matrix, kind: int, rows: Rows, out: F32) -> None:
    round_rows(team, 0, x, kind, rows)
    multiply(team, 1, rows, weights, kind, out)


@jit
def _run_all(board: I64, most: int, *args: Any) -> None:
    together(board, most, _run, args)


@jit
def _rotate(team: I64, x: F32, rows: Rows) -> None:
    round_rows(team, 0, x, ROTATED, rows)


@jit
def _rotate_all(board: I64, most: int, *args: Any) -> None:
    together(board, most, _rotate, args)


def rotated(weight_NK: F32) -> RotatedWeights:
    """A float32 matrix, K a multiple of 32, turned and rounded as its inputs will be. Raises ValueError for weights not finite."""
    check_array("weight_NK", weight_NK, dtype=np.float32, ndim=2)
    num_in = weight_NK.shape[1]
    if num_in % GROUP:
        raise ValueError(f"weight_NK has rows of {num_in} inputs, not a multiple of {GROUP}")
    rows = new_rows(*weight_NK.shape)
    _rotate_all(*helpers(worth_it=weight_NK.size >= SERIAL_WEIGHTS), new_team(1), weight_NK, rows)
    scale = rows[1][:, 0, 0] / np.float32(block_of(num_in))
    if not np.isfinite(scale).all():
        raise ValueError(f"output {int(np.argmin(np.isfinite(scale)))}: weights not finite, or too large")
    return RotatedWeights(rows[0], scale)


def packed(weights: GroupWeights | RotatedWeights) -> PackedWeights:
    """A matrix as this processor's kernel reads it. Done once, at load."""
    if isinstance(weights, RotatedWeights):
        return pack_rotated(weights, panel=_ROTATED_PANEL, raised=FORM.raised)
    return pack(weights, panel=_PANEL)


def check_packed(name: str, weights: PackedWeights) -> None:
    """Raises ValueError for a matrix that was packed for another processor's kernel."""
    panel = _ROTATED_PANEL if weights.kind == ROTATED else _PANEL
    if weights.panel != panel:
        raise ValueError(f"{name} is packed for panels of {weights.panel} outputs, this processor's kernel has {panel}")


def new_rows(num_rows: int, num_in: int) -> Rows:
    """Memory for rounded rows."""
    return np.empty((num_rows, num_in), np.int8), np.empty((num_rows, num_in // GROUP, 2), np.float32)


def integer_linear(x_MK: F32, *, weights: PackedWeights, out_MN: F32) -> None:
    """out = x W^T. A value that is not finite makes its row NaN, alone.

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    check_array("x_MK", x_MK, dtype=np.float32, ndim=2)
    check_array("out_MN", out_MN, dtype=np.float32, ndim=2)
    if x_MK.shape[1] != weights.num_in or out_MN.shape != (x_MK.shape[0], weights.num_out):
        raise ValueError(f"x {x_MK.shape} and out {out_MN.shape} do not fit weights of {weights.num_out} x {weights.num_in}")
    check_packed("weights", weights)
    args = (new_team(2), x_MK, (weights.codes, weights.scales), weights.kind, new_rows(*x_MK.shape), out_MN)
    worth_it = x_MK.shape[0] * weights.num_in * weights.num_out >= SERIAL_PRODUCTS
    _run_all(*helpers(worth_it=worth_it), *args)
