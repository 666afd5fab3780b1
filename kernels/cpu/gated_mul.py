"""The gated activation of a feed-forward block: SiLU for Llama's, GELU in its tanh form for Gemma's.

Both are logistic curves: silu(x) = x / (1 + exp(-x)), and 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)) with
u = sqrt(2 / pi) (x + 0.044715 x^3), which subtracts no near numbers where x is negative.
"""

from typing import Any

import numpy as np

from kernels.cpu import lanes
from kernels.cpu.crew import helpers, together
from kernels.cpu.exponential import exp
from kernels.cpu.jit import jit
from kernels.cpu.team import new_team, take_rows
from kernels.layout import F32, I64, check_array

SERIAL_ELEMENTS = 1 << 17
"""Output elements under which waking other threads costs more than it brings."""
ROWS_AT_ONCE = 4
LINEAR = np.float32(-1.5957691216057308)
CUBIC = np.float32(-0.07135481627260025)
"""-2 sqrt(2 / pi), and that times 0.044715."""


@jit
def _activate(gate: lanes.Lanes, up: lanes.Lanes, gelu: bool) -> lanes.Lanes:
    exponent = lanes.sub(lanes.broadcast(np.float32(0)), gate)
    if gelu:
        slope = lanes.fused(lanes.mul(gate, gate), lanes.broadcast(CUBIC), lanes.broadcast(LINEAR))
        exponent = lanes.mul(slope, gate)
    return lanes.mul(lanes.div(gate, lanes.add(lanes.broadcast(np.float32(1)), exp(exponent))), up)


@jit
def gated_row(gate_up: F32, gelu: bool, row: int, out: F32) -> None:
    """One row of `silu_mul`, or of `gelu_mul`."""
    size = out.shape[1]
    whole = size // 16 * 16
    gate, up, to = row * 2 * size, row * 2 * size + size, row * size
    for at in range(0, whole, 16):
        lanes.store(out, to + at, _activate(lanes.load(gate_up, gate + at), lanes.load(gate_up, up + at), gelu))
    for i in range(whole, size):
        value = _activate(lanes.broadcast(gate_up[row, i]), lanes.broadcast(gate_up[row, size + i]), gelu)
        out[row, i] = lanes.first_lane(value)


@jit
def _rows(team: I64, gate_up: F32, gelu: bool, out: F32) -> None:
    first, last = take_rows(team, out.shape[0], ROWS_AT_ONCE)
    while first < last:
        for row in range(first, last):
            gated_row(gate_up, gelu, row, out)
        first, last = take_rows(team, out.shape[0], ROWS_AT_ONCE)


@jit
def _all_rows(board: I64, most: int, *args: Any) -> None:
    together(board, most, _rows, args)


def _run(gate_up: F32, gelu: bool, out: F32) -> None:
    check_array("gate_up_TJ", gate_up, dtype=np.float32, ndim=2)
    check_array("out_TI", out, dtype=np.float32, ndim=2)
    if gate_up.shape != (out.shape[0], 2 * out.shape[1]):
        raise ValueError(f"gate_up {gate_up.shape} is not twice as wide as out {out.shape}")
    _all_rows(*helpers(worth_it=out.size >= SERIAL_ELEMENTS), new_team(1), gate_up, gelu, out)


def silu_mul(gate_up_TJ: F32, *, out_TI: F32) -> None:
    """out = silu(gate) * up, where a row of `gate_up_TJ` is gate then up (J = 2 I).

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    _run(gate_up_TJ, False, out_TI)


def gelu_mul(gate_up_TJ: F32, *, out_TI: F32) -> None:
    """out = gelu_tanh(gate) * up; otherwise as `silu_mul`."""
    _run(gate_up_TJ, True, out_TI)
