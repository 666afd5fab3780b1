"""Rows of float32 as int8 codes in groups of 32: the input of layers in groups. A row's codes depend on nothing but the row."""

from typing import Any

from llvmlite import ir
from numba import types

from kernels.cpu import integer_lanes as ints
from kernels.cpu import lanes
from kernels.cpu.jit import intrinsic, jit
from kernels.group_weights import GROUP, LARGEST
from kernels.layout import F32
from kernels.packed_weights import I8

_WIDE = ir.VectorType(lanes.F32, GROUP)
_WIDE_INTS = ir.VectorType(lanes.I32, GROUP)
_CODES = ir.VectorType(lanes.I8, GROUP)
_WIDE_MASK = ir.VectorType(ints.I1, GROUP)
_NEGLIGIBLE = 2.0**-100
"""Groups whose largest magnitude is below this become zeros: the reciprocal of their scale would leave float32."""


@intrinsic
def _quantise_group(typingctx: Any, x: Any, group: Any, codes: Any, scales: Any) -> Any:
    """Group number `group` of the flat `x` -> 32 codes, its scale, and scale times the sum of its codes.

    A group with a value that is not finite gets scale NaN, so that all that is computed from it is NaN.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, group, codes, scales = args
        start = builder.mul(group, ir.Constant(group.type, GROUP))
        values = builder.load(lanes.pointer(context, builder, signature.args[0], x, start, to=_WIDE), align=4)
        # Without their signs floats sort like their bits, and what is not finite comes last: one integer maximum finds all.
        bits = builder.and_(builder.bitcast(values, _WIDE_INTS), ints.every(_WIDE_INTS, 0x7FFFFFFF))
        largest = lanes.call(builder, "llvm.vector.reduce.umax.v32i32", lanes.I32, bits)
        most = builder.bitcast(largest, lanes.F32)
        finite = builder.icmp_unsigned("<", largest, lanes.I32(0x7F800000))
        usable = builder.and_(finite, builder.fcmp_ordered(">=", most, lanes.F32(_NEGLIGIBLE)))
        values = builder.select(ints.splat(builder, _WIDE_MASK, usable), values, ints.every(_WIDE, 0.0))
        inverse = builder.select(usable, builder.fdiv(lanes.F32(LARGEST), most), lanes.F32(0))
        rounded = lanes.call(builder, "llvm.rint.v32f32", _WIDE, builder.fmul(values, ints.splat(builder, _WIDE, inverse)))
        whole = builder.fptosi(rounded, _WIDE_INTS)
        to = lanes.pointer(context, builder, signature.args[2], codes, start, to=_CODES)
        builder.store(builder.trunc(whole, _CODES), to, align=1)
        total = lanes.call(builder, "llvm.vector.reduce.add.v32i32", lanes.I32, whole)
        scale = builder.select(usable, builder.fdiv(most, lanes.F32(LARGEST)), lanes.F32(0))
        scale = builder.select(finite, scale, lanes.F32(float("nan")))
        to = lanes.pointer(
            context, builder, signature.args[3], scales, builder.mul(group, ir.Constant(group.type, 2)), to=lanes.F32
        )
        builder.store(scale, to, align=4)
        builder.store(builder.fmul(scale, builder.sitofp(total, lanes.F32)), builder.gep(to, [lanes.I32(1)]), align=4)
        return context.get_dummy_value()

    return types.void(x, types.intp, codes, scales), codegen


@jit
def quantise_rows(x_MK: F32, first: int, last: int, codes_MK: I8, scales_MG2: F32) -> None:
    """Rows first..last-1 of a C-contiguous `x_MK`, K a multiple of 32; gives (scale, scale * sum of codes) for each group."""
    groups = x_MK.shape[1] // GROUP
    for group in range(first * groups, last * groups):
        _quantise_group(x_MK, group, codes_MK, scales_MG2)
