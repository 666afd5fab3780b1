"""Single numbers, and sixteen on their way into a cache, of arrays that are float32 or hold the bits of float16 (see `lanes`)."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu import lanes
from kernels.cpu.jit import intrinsic


@intrinsic
def number(typingctx: Any, array: Any, offset: Any) -> Any:
    """array.flat[offset] as float32, of numbers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if lanes.is_half(signature.args[0]):
            return builder.fpext(
                builder.load(lanes.pointer(context, builder, signature.args[0], *args, to=lanes.F16), align=2), lanes.F32
            )
        return builder.load(lanes.pointer(context, builder, signature.args[0], *args, to=lanes.F32), align=4)

    return types.float32(array, types.intp), codegen


def _put(halves: Any) -> Any:
    """Code that stores a value of float32, as `halves` where the array is of float16."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, offset, value = args
        half = lanes.is_half(signature.args[0])
        address = lanes.pointer(context, builder, signature.args[0], array, offset, to=halves if half else value.type)
        builder.store(builder.fptrunc(value, halves) if half else value, address, align=2 if half else 4)
        return context.get_dummy_value()

    return codegen


@intrinsic
def put(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
    """array.flat[offset] = value (float32), of numbers: the nearest one, infinity beyond the greatest."""
    return types.void(array, types.intp, types.float32), _put(lanes.F16)


@intrinsic
def put_all(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
    """array.flat[offset : offset + 16] = value, of numbers: as `put` one by one."""
    return types.void(array, types.intp, lanes.LANES), _put(lanes.HALVES)


@intrinsic
def spread(typingctx: Any, array: Any, offset: Any, stride: Any, source: Any, start: Any, count: Any) -> Any:
    """array.flat[offset + i * stride] = source.flat[start + i] for i below `count`; both are of one type."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, offset, stride, source, start, count = args
        half = lanes.is_half(signature.args[0])
        kind, align = (ir.IntType(16), 2) if half else (lanes.F32, 4)
        to = lanes.pointer(context, builder, signature.args[0], array, offset, to=kind)
        origin = lanes.pointer(context, builder, signature.args[3], source, start, to=kind)
        with cgutils.for_range(builder, count) as loop:
            number = builder.load(builder.gep(origin, [loop.index]), align=align)
            builder.store(number, builder.gep(to, [builder.mul(loop.index, stride)]), align=align)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, source, types.intp, types.intp), codegen
