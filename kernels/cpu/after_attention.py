"""From the output of one layer's attention to the input of the next one's, in integers and in one call.

Output projection, residual, norm, feed-forward part, residual, norm, and the next layer's q, k, v. Bit for bit what
`integer_linear`, `add_rms_norm` and `silu_mul` give one after the other; here the threads wake up once, and small parts wait for no
Python.
"""

from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from kernels.cpu.crew import helpers, together
from kernels.cpu.gated_mul import gated_row
from kernels.cpu.integer_linear import Rows, check_packed, multiply, new_rows, round_rows, round_some
from kernels.cpu.jit import jit
from kernels.cpu.rms_norm import add_norm_row, norm_row
from kernels.cpu.team import done_then_take, new_team, take, wait
from kernels.layout import F32, I64, check_array
from kernels.packed_weights import I8, ROTATED, U8, U16, PackedWeights

SERIAL_PRODUCTS = 1 << 20
"""Products under which waking other threads costs more than it brings."""
ROWS_PER_ITEM = 2
"""Rows of an item in the phases between products."""
_NONE: Final = np.empty(0, np.float32)
_NO_MATRIX: Final = (np.empty(0, np.uint8), np.empty(0, np.uint16))
_NUM_PHASES: Final = 8

Matrices = tuple[U8, U16, U8, U16, U8, U16, U8, U16]
"""Codes and scales of the output projection; gate and up side by side; down; the next q, k, v, or no elements. (Flat: a parallel
loop of numba takes no tuple of tuples.)"""
Kinds = tuple[int, int, int, int]
Norms = tuple[F32, F32, F32, F32]
"""Of what attention gave, before the feed-forward part, of what that gave, and the next layer's; no elements = no norm."""
Memory = tuple[F32, F32, F32, I8, F32, I8, F32, I8, F32]
"""f32 [T, H] of a projection, f32 [T, 2 I] and [T, I] of the feed-forward part; rounded rows of A, H and I inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterAttention:
    """The weights between two attentions. A heads' output elements, H hidden, I feed-forward, C as in README.md.

    Attributes:
        out: A -> H. gate_up: H -> 2 I, gate then up. down: I -> H.
        post_norm: before the feed-forward part. next_norm: before the next layer, or behind the last one.
        attention_norm, gated_norm: of what attention and the feed-forward part give, before they are added; None = no norm.
        qkv: H -> C of the next layer; None behind the last one. qkv_bias: None = no bias.
        gelu: GELU in its tanh form gates instead of SiLU.
    """

    out: PackedWeights
    gate_up: PackedWeights
    down: PackedWeights
    post_norm: F32
    next_norm: F32
    attention_norm: F32 | None = None
    gated_norm: F32 | None = None
    qkv: PackedWeights | None = None
    qkv_bias: F32 | None = None
    eps: float
    gelu: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError when matrices, norms or bias do not fit together."""
        _check_layer(self)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory of a forward pass, used by one layer after the other; only its results are for reading, `x` [T, H] and `qkv` [T, C].

    Attributes:
        shape: (T, A, H, I, C) that it was made for. It makes its own arrays, so whoever has the shape knows them all.
    """

    shape: tuple[int, int, int, int, int]
    x: F32
    qkv: F32
    memory: Memory

    @classmethod
    def of(cls, num_tokens: int, *, attended: int, hidden: int, intermediate: int, qkv: int) -> "Workspace":
        """Uninitialised."""
        x, result, part = (np.empty((num_tokens, width), np.float32) for width in (hidden, qkv, hidden))
        gate_up, gated = (np.empty((num_tokens, width), np.float32) for width in (2 * intermediate, intermediate))
        rows = [new_rows(num_tokens, width) for width in (attended, hidden, intermediate)]
        memory = (part, gate_up, gated, *rows[0], *rows[1], *rows[2])
        return cls((num_tokens, attended, hidden, intermediate, qkv), x, result, memory)

    def first(self, num_tokens: int) -> "Workspace":
        """The same memory, for its first rows."""
        memory = cast(Memory, tuple(array[:num_tokens] for array in self.memory))
        return Workspace((num_tokens, *self.shape[1:]), self.x[:num_tokens], self.qkv[:num_tokens], memory)


@jit
def _add_and_norm(
    team: I64, phase: int, part: F32, residual: F32, own_norm: F32, next_norm: F32, eps: np.float32, x: F32, kind: int, rows: Rows
) -> None:
    """A phase: residual += own_norm(part); x = next_norm(residual), rounded into `rows`."""
    count = (x.shape[0] + ROWS_PER_ITEM - 1) // ROWS_PER_ITEM
    item = take(team, phase)
    while item < count:
        first, last = item * ROWS_PER_ITEM, min((item + 1) * ROWS_PER_ITEM, x.shape[0])
        for row in range(first, last):
            if own_norm.shape[0]:
                norm_row(part, own_norm, eps, row, part)
            add_norm_row(part, residual, next_norm, eps, row, x)
        round_some(x, first, last, kind, rows)
        item = done_then_take(team, phase)
    wait(team, phase, count)


@jit
def _gate(team: I64, phase: int, gate_up: F32, gelu: bool, gated: F32, kind: int, rows: Rows) -> None:
    """A phase: gated = act(gate) * up, rounded into `rows`."""
    count = (gated.shape[0] + ROWS_PER_ITEM - 1) // ROWS_PER_ITEM
    item = take(team, phase)
    while item < count:
        first, last = item * ROWS_PER_ITEM, min((item + 1) * ROWS_PER_ITEM, gated.shape[0])
        for row in range(first, last):
            gated_row(gate_up, gelu, row, gated)
        round_some(gated, first, last, kind, rows)
        item = done_then_take(team, phase)
    wait(team, phase, count)


@jit
def _run(
    team: I64,
    attended: F32,
    residual: F32,
    weights: Matrices,
    kinds: Kinds,
    norms: Norms,
    eps: np.float32,
    gelu: bool,
    memory: Memory,
    x: F32,
    qkv: F32,
) -> None:
    """One thread of a team."""
    part, gate_up, gated = memory[:3]
    attended_rows, rows, gated_rows = memory[3:5], memory[5:7], memory[7:9]
    round_rows(team, 0, attended, kinds[0], attended_rows)
    multiply(team, 1, attended_rows, weights[0:2], kinds[0], part)
    _add_and_norm(team, 2, part, residual, norms[0], norms[1], eps, x, kinds[1], rows)
    multiply(team, 3, rows, weights[2:4], kinds[1], gate_up)
    _gate(team, 4, gate_up, gelu, gated, kinds[2], gated_rows)
    multiply(team, 5, gated_rows, weights[4:6], kinds[2], part)
    _add_and_norm(team, 6, part, residual, norms[2], norms[3], eps, x, kinds[1], rows)
    if weights[6].shape[0]:
        multiply(team, 7, rows, weights[6:8], kinds[3], qkv)


@jit
def _run_all(board: I64, most: int, *args: Any) -> None:
    together(board, most, _run, args)


def _check(attended_TA: F32, residual_TH: F32, layer: AfterAttention, workspace: Workspace) -> None:
    check_array("attended_TA", attended_TA, dtype=np.float32, ndim=2)
    check_array("residual_TH", residual_TH, dtype=np.float32, ndim=2)
    num_tokens, attended, hidden, intermediate, qkv = workspace.shape
    if attended_TA.shape != (num_tokens, attended) or residual_TH.shape != (num_tokens, hidden):
        raise ValueError(f"attended_TA {attended_TA.shape} or residual_TH {residual_TH.shape} do not fit {workspace.shape}")
    wanted = (layer.out.num_in, layer.out.num_out, layer.down.num_in, qkv if layer.qkv is None else layer.qkv.num_out)
    if (attended, hidden, intermediate, qkv) != wanted:
        raise ValueError(f"workspace for {(attended, hidden, intermediate, qkv)} elements, the layer has {wanted}")


def _check_layer(layer: AfterAttention) -> None:
    hidden, gated = layer.out.num_out, layer.down.num_in
    if (layer.gate_up.num_in, layer.gate_up.num_out, layer.down.num_out) != (hidden, 2 * gated, hidden):
        raise ValueError(f"gate_up or down do not fit {hidden} hidden and {gated} feed-forward elements")
    for name in ("out", "gate_up", "down", "qkv"):
        part = getattr(layer, name)
        if part is not None:
            check_packed(name, part)
    if layer.qkv is not None and (layer.qkv.kind == ROTATED) != (layer.gate_up.kind == ROTATED):
        raise ValueError("gate_up and qkv read rows that are rounded alike: both are rotated or none is")
    if layer.qkv is not None and layer.qkv.num_in != hidden:
        raise ValueError(f"qkv has {layer.qkv.num_in} inputs for {hidden} hidden elements")
    widths = {"post_norm": hidden, "next_norm": hidden, "attention_norm": hidden, "gated_norm": hidden}
    if layer.qkv is not None:
        widths["qkv_bias"] = layer.qkv.num_out
    for name, columns in widths.items():
        array = getattr(layer, name)
        if array is not None:
            check_array(name, array, dtype=np.float32, ndim=1)
            if array.shape != (columns,):
                raise ValueError(f"{name} has {len(array)} elements, the layer wants {columns}")


def after_attention(attended_TA: F32, *, residual_TH: F32, layer: AfterAttention, workspace: Workspace) -> F32:
    """Adds both parts of a layer to `residual_TH`; gives the next layer's q, k, v [T, C], or behind the last one its norm [T, H].

    The result lies in `workspace` until the next call. A row with a value that is not finite comes out as NaN, alone.

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    _check(attended_TA, residual_TH, layer, workspace)
    own, gated = (_NONE if norm is None else norm for norm in (layer.attention_norm, layer.gated_norm))
    out, gate_up, down, qkv = layer.out, layer.gate_up, layer.down, layer.qkv
    following = _NO_MATRIX if qkv is None else (qkv.codes, qkv.scales)
    args = (
        new_team(_NUM_PHASES),
        attended_TA,
        residual_TH,
        (out.codes, out.scales, gate_up.codes, gate_up.scales, down.codes, down.scales, *following),
        (out.kind, gate_up.kind, down.kind, 0 if qkv is None else qkv.kind),
        (own, layer.post_norm, gated, layer.next_norm),
        np.float32(layer.eps),
        layer.gelu,
        workspace.memory,
        workspace.x,
        workspace.qkv,
    )
    worth_it = len(attended_TA) * gate_up.num_in * gate_up.num_out >= SERIAL_PRODUCTS
    _run_all(*helpers(worth_it=worth_it), *args)
    if qkv is None:
        return workspace.x
    if layer.qkv_bias is not None:
        np.add(workspace.qkv, layer.qkv_bias, out=workspace.qkv)
    return workspace.qkv
