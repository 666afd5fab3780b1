"""Rows of float32, turned and rounded to int8 codes with one scale a row: inputs and weights of rotated layers alike.

A row's codes depend on nothing but the row. See `rotated_weights` for what is turned, and why.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from kernels.cpu import integer_lanes as ints
from kernels.cpu import lanes
from kernels.cpu.integer_lanes import I1
from kernels.cpu.jit import intrinsic, jit
from kernels.group_weights import GROUP, LARGEST
from kernels.layout import F32
from kernels.packed_weights import I8
from kernels.rotated_weights import BLOCK, SIGNS

_NEGLIGIBLE = np.float32(2.0**-100)
"""Rows whose largest magnitude is below this become zeros: the reciprocal of their scale would leave float32."""
_NOT_FINITE = 0x7F800000
"""Bits of infinity. Without their signs floats sort like their bits, and what is not finite comes last."""


def _turned(builder: Any, values: Any) -> Any:
    """H S of a vector of 32 or 64 lanes: the butterfly of distance 1 first, then 2, 4, ..."""
    kind, size = values.type, values.type.count
    values = builder.fmul(values, ir.Constant(kind, SIGNS[:size].tolist()))
    for distance in (1 << stage for stage in range(size.bit_length() - 1)):
        partners = ir.Constant(ir.VectorType(lanes.I32, size), [lane ^ distance for lane in range(size)])
        signs = ir.Constant(kind, [-1.0 if lane & distance else 1.0 for lane in range(size)])
        partner = builder.shuffle_vector(values, values, partners)
        values = lanes.call(builder, f"llvm.fma.v{size}f32", kind, values, signs, partner)
    return values


@intrinsic
def _turn(typingctx: Any, block: Any, x: Any, offset: Any, turned: Any, place: Any) -> Any:
    """turned.flat[place:] = x.flat[offset:] of `block` (a constant) elements, turned. Gives the greatest bits without sign."""
    size = block.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, bits = ir.VectorType(lanes.F32, size), ir.VectorType(lanes.I32, size)
        address = lanes.pointer(context, builder, signature.args[1], args[1], args[2], to=kind)
        values = _turned(builder, builder.load(address, align=4))
        builder.store(values, lanes.pointer(context, builder, signature.args[3], args[3], args[4], to=kind), align=4)
        unsigned = builder.and_(builder.bitcast(values, bits), ints.every(bits, 0x7FFFFFFF))
        return lanes.call(builder, f"llvm.vector.reduce.umax.v{size}i32", lanes.I32, unsigned)

    return types.int32(block, x, types.intp, turned, types.intp), codegen


@intrinsic
def _round(typingctx: Any, block: Any, turned: Any, place: Any, inverse: Any, codes: Any, offset: Any) -> Any:
    """codes.flat[offset:] = turned.flat[place:] times `inverse`, rounded to even; gives their sum. 0 where `inverse` is 0."""
    size = block.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, bits, bytes_ = (ir.VectorType(lane, size) for lane in (lanes.F32, lanes.I32, lanes.I8))
        _, turned, place, inverse, codes, offset = args
        values = builder.load(lanes.pointer(context, builder, signature.args[1], turned, place, to=kind), align=4)
        usable = builder.fcmp_ordered(">", inverse, lanes.F32(0))
        values = builder.select(ints.splat(builder, ir.VectorType(I1, size), usable), values, ints.every(kind, 0.0))
        scaled = builder.fmul(values, ints.splat(builder, kind, inverse))
        whole = builder.fptosi(lanes.call(builder, f"llvm.rint.v{size}f32", kind, scaled), bits)
        address = lanes.pointer(context, builder, signature.args[4], codes, offset, to=bytes_)
        builder.store(builder.trunc(whole, bytes_), address, align=1)
        return lanes.call(builder, f"llvm.vector.reduce.add.v{size}i32", lanes.I32, whole)

    return types.int32(block, turned, types.intp, types.float32, codes, types.intp), codegen


@intrinsic
def _as_float(typingctx: Any, bits: Any) -> Any:
    """The float32 with these bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], lanes.F32)

    return types.float32(types.int32), codegen


@jit
def rotate_rows(x_MK: F32, first: int, last: int, codes_MK: I8, scales_MG2: F32) -> None:
    """Rows first..last-1 of a C-contiguous `x_MK`, K a multiple of 32; gives (scale, sum of codes) in [row, 0, :].

    A row under R is `scale * code`. One with a value that is not finite, or becomes so when turned, gets scale NaN and codes 0.
    """
    size = x_MK.shape[1]
    turned = np.empty(size, np.float32)
    for row in range(first, last):
        start, largest, total = row * size, 0, 0
        if size % BLOCK == 0:
            for at in range(0, size, BLOCK):
                largest = max(largest, _turn(BLOCK, x_MK, start + at, turned, at))
        else:
            for at in range(0, size, GROUP):
                largest = max(largest, _turn(GROUP, x_MK, start + at, turned, at))
        scale, inverse = np.float32(0), np.float32(0)
        most = _as_float(np.int32(largest))
        if largest >= _NOT_FINITE:
            scale = np.float32(np.nan)
        elif most >= _NEGLIGIBLE:
            scale, inverse = most / np.float32(LARGEST), np.float32(LARGEST) / most
        for at in range(0, size, GROUP):
            total += _round(GROUP, turned, at, inverse, codes_MK, start + at)
        scales_MG2[row, 0, 0] = scale
        scales_MG2[row, 0, 1] = np.float32(total)
