"""The gated activation of a Gemma feed-forward block: GELU in its tanh form, which is a logistic curve of a cubic.

0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3): no difference of near numbers for negative x.
"""

import numpy as np
from numba import prange

from kernels.cpu import lanes
from kernels.cpu.exponential import exp
from kernels.cpu.jit import jit, jit_parallel, num_threads
from kernels.layout import F32, check_array

SERIAL_ELEMENTS = 1 << 17
"""Output elements under which waking other threads costs more than it brings."""
LINEAR = np.float32(-1.5957691216057308)
CUBIC = np.float32(-0.07135481627260025)
"""-2 sqrt(2 / pi), and that times 0.044715."""


@jit
def _activate(gate: lanes.Lanes, up: lanes.Lanes) -> lanes.Lanes:
    slope = lanes.fused(lanes.mul(gate, gate), lanes.broadcast(CUBIC), lanes.broadcast(LINEAR))
    return lanes.mul(lanes.div(gate, lanes.add(lanes.broadcast(np.float32(1)), exp(lanes.mul(slope, gate)))), up)


@jit
def _row(gate_up: F32, row: int, out: F32) -> None:
    size = out.shape[1]
    whole = size // 16 * 16
    gate, up, to = row * 2 * size, row * 2 * size + size, row * size
    for at in range(0, whole, 16):
        lanes.store(out, to + at, _activate(lanes.load(gate_up, gate + at), lanes.load(gate_up, up + at)))
    for i in range(whole, size):
        value = _activate(lanes.broadcast(gate_up[row, i]), lanes.broadcast(gate_up[row, size + i]))
        out[row, i] = lanes.first_lane(value)


@jit
def _serial(gate_up: F32, out: F32) -> None:
    for row in range(out.shape[0]):
        _row(gate_up, row, out)


@jit_parallel
def _parallel(gate_up: F32, out: F32) -> None:
    for row in prange(out.shape[0]):
        _row(gate_up, row, out)


def gelu_mul(gate_up_TJ: F32, *, out_TI: F32) -> None:
    """out = gelu_tanh(gate) * up, where a row of `gate_up_TJ` is gate then up (J = 2 I).

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    check_array("gate_up_TJ", gate_up_TJ, dtype=np.float32, ndim=2)
    check_array("out_TI", out_TI, dtype=np.float32, ndim=2)
    if gate_up_TJ.shape != (out_TI.shape[0], 2 * out_TI.shape[1]):
        raise ValueError(f"gate_up {gate_up_TJ.shape} is not twice as wide as out {out_TI.shape}")
    run = _serial if num_threads() == 1 or out_TI.size < SERIAL_ELEMENTS else _parallel
    run(gate_up_TJ, out_TI)
