"""A linear layer in integers: float32 rows become int8 codes in groups of 32, the weights are the file's own 4 or 8 bits.

A result depends on its row and on the weights alone: integer sums are exact and the groups' float32 sums have one order. So a row
has the same bits in a batch of any size, at any place in it, on any number of threads.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.cpu.crew import helpers, together
from kernels.cpu.group_tile import MOST_ROWS, PANEL, tile_of_4_bits, tile_of_8_bits
from kernels.cpu.jit import inlined, jit
from kernels.cpu.quantise_rows import quantise_rows
from kernels.cpu.team import done_then_take, new_team, take, wait
from kernels.group_weights import GROUP, I8, U8, U16, GroupWeights, PackedGroups, pack
from kernels.layout import F32, I64, check_array

SERIAL_PRODUCTS = 1 << 23
"""Products under which waking other threads costs more than it brings: 0.02 ms right after another kernel, 0.1 ms otherwise."""
ROWS_TO_ROUND = 4
"""Rows of an item in which inputs are rounded."""
ROWS_AT_ONCE = 32
"""Rows whose codes stay in the first-level cache while the panels of an item pass by."""
ROWS_PER_ITEM = 128
"""Rows of a work item: their codes stay in the second-level cache."""
PANELS_PER_ITEM = 64 // PANEL
"""Panels of a work item: few enough that threads finish together."""


Matrix = tuple[U8, U16]
"""Codes and scales of `PackedGroups`."""
Rows = tuple[I8, F32]
"""Codes i8 [M, K] and scales f32 [M, G, 2] of `quantise_rows`."""


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


_rows_of_4_bits = _rows_of(tile_of_4_bits, most=MOST_ROWS[4])
_rows_of_8_bits = _rows_of(tile_of_8_bits, most=MOST_ROWS[8])


@jit
def _num_items(num_rows: int, num_out: int) -> int:
    """Items that a product of so many rows and outputs is cut into."""
    panels = (num_out + PANEL - 1) // PANEL
    return (num_rows + ROWS_PER_ITEM - 1) // ROWS_PER_ITEM * ((panels + PANELS_PER_ITEM - 1) // PANELS_PER_ITEM)


@jit
def _run_item(item: int, weights: Matrix, bits: int, rows: Rows, spare: F32, out: F32) -> None:
    """Some panels for some rows. A last panel that is wider than the output goes through `spare`, f32 [ROWS_AT_ONCE, PANEL]."""
    num_rows, num_out = out.shape
    num_panels = (num_out + PANEL - 1) // PANEL
    items_across = (num_panels + PANELS_PER_ITEM - 1) // PANELS_PER_ITEM
    row, panel = item // items_across * ROWS_PER_ITEM, item % items_across * PANELS_PER_ITEM
    last_row = min(row + ROWS_PER_ITEM, num_rows)
    for first in range(row, last_row, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, last_row)
        for p in range(panel, min(panel + PANELS_PER_ITEM, num_panels)):
            width = num_out - p * PANEL
            to, place, stride = out, first * num_out + p * PANEL, num_out
            if width < PANEL:
                to, place, stride = spare, 0, PANEL
            if bits == 4:
                _rows_of_4_bits(weights, rows, p, first, last, to, place, stride)
            else:
                _rows_of_8_bits(weights, rows, p, first, last, to, place, stride)
            if width < PANEL:
                out[first:last, p * PANEL :] = spare[: last - first, :width]


@jit
def round_rows(team: I64, phase: int, x: F32, rows: Rows) -> None:
    """A phase of a team: `x` becomes `rows`."""
    count = (x.shape[0] + ROWS_TO_ROUND - 1) // ROWS_TO_ROUND
    item = take(team, phase)
    while item < count:
        quantise_rows(x, item * ROWS_TO_ROUND, min((item + 1) * ROWS_TO_ROUND, x.shape[0]), rows[0], rows[1])
        item = done_then_take(team, phase)
    wait(team, phase, count)


@jit
def multiply(team: I64, phase: int, rows: Rows, weights: Matrix, bits: int, out: F32) -> None:
    """A phase of a team: out = rows W^T."""
    count = _num_items(out.shape[0], out.shape[1])
    spare = np.empty((ROWS_AT_ONCE, PANEL), np.float32)
    item = take(team, phase)
    while item < count:
        _run_item(item, weights, bits, rows, spare, out)
        item = done_then_take(team, phase)
    wait(team, phase, count)


@jit
def _run(team: I64, x: F32, weights: Matrix, bits: int, rows: Rows, out: F32) -> None:
    round_rows(team, 0, x, rows)
    multiply(team, 1, rows, weights, bits, out)


@jit
def _run_all(board: I64, most: int, *args: Any) -> None:
    together(board, most, _run, args)


def packed(weights: GroupWeights) -> PackedGroups:
    """A matrix as this processor's kernel reads it. Done once, at load."""
    return pack(weights, panel=PANEL)


def new_rows(num_rows: int, num_in: int) -> Rows:
    """Memory for rounded rows."""
    return np.empty((num_rows, num_in), np.int8), np.empty((num_rows, num_in // GROUP, 2), np.float32)


def group_linear(x_MK: F32, *, weights: PackedGroups, out_MN: F32) -> None:
    """out = x W^T. A group of 32 inputs that holds a value that is not finite makes its row NaN, alone.

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    check_array("x_MK", x_MK, dtype=np.float32, ndim=2)
    check_array("out_MN", out_MN, dtype=np.float32, ndim=2)
    if x_MK.shape[1] != weights.num_in or out_MN.shape != (x_MK.shape[0], weights.num_out):
        raise ValueError(f"x {x_MK.shape} and out {out_MN.shape} do not fit weights of {weights.num_out} x {weights.num_in}")
    if weights.panel != PANEL:
        raise ValueError(f"weights are packed for panels of {weights.panel} outputs, this processor's kernel has {PANEL}")
    args = (new_team(2), x_MK, (weights.codes, weights.scales), weights.bits, new_rows(*x_MK.shape), out_MN)
    worth_it = x_MK.shape[0] * weights.num_in * weights.num_out >= SERIAL_PRODUCTS
    _run_all(*helpers(worth_it=worth_it), *args)
