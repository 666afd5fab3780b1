"""A few `Lanes` values side by side (a tuple of 1 to 4): the accumulators of queries that share each loaded key or value.

Sharing is all that a tile does: its members never meet, so a query gets the same bits in a tile of any size.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu import lanes
from kernels.cpu.jit import intrinsic


def _members(builder: Any, tile: Any) -> list[Any]:
    return list(cgutils.unpack_tuple(builder, tile))


def _scalar(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    address = lanes.pointer(context, builder, array_type, array, offset, to=lanes.F32)
    return lanes.splat(builder, builder.load(address, align=4))


def _step(builder: Any, offset: Any, stride: Any, index: int) -> Any:
    return builder.add(offset, builder.mul(stride, ir.Constant(stride.type, index)))


@intrinsic
def zeros(typingctx: Any, count: Any) -> Any:
    """A tile of `count` (a constant) zeros."""
    tile = types.UniTuple(lanes.LANES, count.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.pack_array(builder, [lanes.constant(0.0)] * tile.count)

    return tile(count), codegen


@intrinsic
def load(typingctx: Any, count: Any, array: Any, offset: Any, stride: Any) -> Any:
    """Member i (of `count`, a constant) is array.flat[offset + i * stride :][:16]."""
    tile = types.UniTuple(lanes.LANES, count.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, array, offset, stride = args
        places = [
            lanes.pointer(context, builder, signature.args[1], array, _step(builder, offset, stride, i)) for i in range(tile.count)
        ]
        return cgutils.pack_array(builder, [builder.load(place, align=4) for place in places])

    return tile(count, array, types.intp, types.intp), codegen


@intrinsic
def store(typingctx: Any, tile: Any, array: Any, offset: Any, stride: Any) -> Any:
    """array.flat[offset + i * stride :][:16] = member i."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile, array, offset, stride = args
        for i, member in enumerate(_members(builder, tile)):
            place = lanes.pointer(context, builder, signature.args[1], array, _step(builder, offset, stride, i))
            builder.store(member, place, align=4)
        return context.get_dummy_value()

    return types.void(tile, array, types.intp, types.intp), codegen


@intrinsic
def add(typingctx: Any, a: Any, b: Any) -> Any:
    """Member by member."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pairs = zip(*(_members(builder, tile) for tile in args), strict=True)
        return cgutils.pack_array(builder, [builder.fadd(x, y) for x, y in pairs])

    return a(a, a), codegen


@intrinsic
def scale(typingctx: Any, tile: Any, array: Any, offset: Any, stride: Any) -> Any:
    """Member i times array.flat[offset + i * stride]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile, array, offset, stride = args
        factors = [
            _scalar(context, builder, signature.args[1], array, _step(builder, offset, stride, i))
            for i in range(signature.args[0].count)
        ]
        return cgutils.pack_array(builder, [builder.fmul(m, f) for m, f in zip(_members(builder, tile), factors, strict=True)])

    return tile(tile, array, types.intp, types.intp), codegen


@intrinsic
def accumulate(typingctx: Any, tile: Any, array: Any, offset: Any, stride: Any, shared: Any) -> Any:
    """Member i plus array.flat[offset + i * stride] * shared, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile, array, offset, stride, shared = args
        factors = [
            _scalar(context, builder, signature.args[1], array, _step(builder, offset, stride, i))
            for i in range(signature.args[0].count)
        ]
        return cgutils.pack_array(
            builder, [lanes.fma(builder, f, shared, m) for m, f in zip(_members(builder, tile), factors, strict=True)]
        )

    return tile(tile, array, types.intp, types.intp, lanes.LANES), codegen
