"""A linear layer in integers: float32 rows become int8 codes in groups of 32, the weights are the file's own 4 or 8 bits.

A result depends on its row and on the weights alone: integer sums are exact and the groups' float32 sums have one order. So a row
has the same bits in a batch of any size, at any place in it, on any number of threads.
"""

import numpy as np
from numba import prange

from kernels.cpu.group_tile import tile_of_4_bits, tile_of_8_bits
from kernels.cpu.jit import inlined, jit, jit_parallel, num_threads
from kernels.cpu.lanes import next_item
from kernels.cpu.quantise_rows import quantise_rows
from kernels.group_weights import GROUP, I8, PANEL, U8, U16, PackedGroups
from kernels.layout import F32, I64, check_array

SERIAL_PRODUCTS = 1 << 23
"""Products under which waking other threads costs more than it brings: 0.02 ms right after another kernel, 0.1 ms otherwise."""
SERIAL_CODES = 1 << 18
"""The same for inputs to be rounded."""
ROWS_AT_ONCE = 32
"""Rows whose codes stay in the first-level cache while the panels of an item pass by."""
ROWS_PER_ITEM = 128
"""Rows of a work item: their codes stay in the second-level cache."""
PANELS_PER_ITEM = 8
"""Panels of a work item: few enough that threads finish together."""


Matrix = tuple[U8, U16]
"""Codes and scales of `PackedGroups`."""
Rows = tuple[I8, F32]
"""Codes i8 [M, K] and scales f32 [M, G, 2] of `quantise_rows`."""


@inlined
def _rows_of_4_bits(weights: Matrix, rows: Rows, panel: int, first: int, last: int, out: F32, place: int, stride: int) -> None:
    codes, scales = weights
    x, x_scales = rows
    groups = x.shape[1] // GROUP
    while first + 4 <= last:
        tile_of_4_bits(4, codes, scales, x, x_scales, panel, first, groups, out, place, stride)
        first += 4
        place += 4 * stride
    while first < last:
        tile_of_4_bits(1, codes, scales, x, x_scales, panel, first, groups, out, place, stride)
        first += 1
        place += stride


@inlined
def _rows_of_8_bits(weights: Matrix, rows: Rows, panel: int, first: int, last: int, out: F32, place: int, stride: int) -> None:
    codes, scales = weights
    x, x_scales = rows
    groups = x.shape[1] // GROUP
    while first + 4 <= last:
        tile_of_8_bits(4, codes, scales, x, x_scales, panel, first, groups, out, place, stride)
        first += 4
        place += 4 * stride
    while first < last:
        tile_of_8_bits(1, codes, scales, x, x_scales, panel, first, groups, out, place, stride)
        first += 1
        place += stride


@inlined
def _item(weights: Matrix, bits: int, rows: Rows, panel: int, last_panel: int, row: int, last_row: int, out: F32) -> None:
    """Some panels for some rows. A last panel that is wider than the output goes through memory of its own."""
    num_out = out.shape[1]
    spare = np.empty((ROWS_AT_ONCE, PANEL), np.float32)
    for first in range(row, last_row, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, last_row)
        for p in range(panel, last_panel):
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
def _work(counter: I64, weights: Matrix, bits: int, rows: Rows, out: F32) -> None:
    """One thread: takes work items until none is left."""
    num_rows = out.shape[0]
    num_panels = (out.shape[1] + PANEL - 1) // PANEL
    items_across = (num_panels + PANELS_PER_ITEM - 1) // PANELS_PER_ITEM
    while True:
        item = next_item(counter)
        row, panel = item // items_across * ROWS_PER_ITEM, item % items_across * PANELS_PER_ITEM
        if row >= num_rows:
            return
        last_panel, last_row = min(panel + PANELS_PER_ITEM, num_panels), min(row + ROWS_PER_ITEM, num_rows)
        _item(weights, bits, rows, panel, last_panel, row, last_row, out)


@jit
def _serial(x: F32, weights: Matrix, bits: int, rows: Rows, out: F32) -> None:
    quantise_rows(x, 0, x.shape[0], rows[0], rows[1])
    _work(np.zeros(1, np.int64), weights, bits, rows, out)


@jit_parallel
def _quantise_all(x: F32, rows: Rows, num_workers: int) -> None:
    num_rows = x.shape[0]
    for worker in prange(num_workers):
        quantise_rows(x, num_rows * worker // num_workers, num_rows * (worker + 1) // num_workers, rows[0], rows[1])


@jit_parallel
def _work_all(counter: I64, weights: Matrix, bits: int, rows: Rows, out: F32, num_workers: int) -> None:
    for _ in prange(num_workers):
        _work(counter, weights, bits, rows, out)


def group_linear(x_MK: F32, *, weights: PackedGroups, out_MN: F32) -> None:
    """out = x W^T. A group of 32 inputs that holds a value that is not finite makes its row NaN, alone.

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    check_array("x_MK", x_MK, dtype=np.float32, ndim=2)
    check_array("out_MN", out_MN, dtype=np.float32, ndim=2)
    if x_MK.shape[1] != weights.num_in or out_MN.shape != (x_MK.shape[0], weights.num_out):
        raise ValueError(f"x {x_MK.shape} and out {out_MN.shape} do not fit weights of {weights.num_out} x {weights.num_in}")
    matrix = (weights.codes, weights.scales)
    rows = (np.empty(x_MK.shape, np.int8), np.empty((x_MK.shape[0], weights.num_in // GROUP, 2), np.float32))
    workers = num_threads()
    if workers == 1 or x_MK.shape[0] * weights.num_in * weights.num_out < SERIAL_PRODUCTS:
        _serial(x_MK, matrix, weights.bits, rows, out_MN)
        return
    # Two calls: numba may fuse two loops of one function, and then a thread would read rows that another has yet to write.
    if x_MK.size < SERIAL_CODES:
        quantise_rows(x_MK, 0, x_MK.shape[0], *rows)
    else:
        _quantise_all(x_MK, rows, workers)
    _work_all(np.zeros(1, np.int64), matrix, weights.bits, rows, out_MN, workers)
