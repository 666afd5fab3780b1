"""`Lanes` values in rows side by side (a tuple of rows x width members): the accumulators of queries that share what is loaded.

Sharing is all that a tile does: its members never meet, so a query gets the same bits in a tile of any size. Member j of row i
stands for array.flat[offset + i * stride + 16 * j :][:16].
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu import lanes
from kernels.cpu.jit import intrinsic


def _members(builder: Any, tile: Any) -> list[Any]:
    return list(cgutils.unpack_tuple(builder, tile))


def _step(builder: Any, offset: Any, stride: Any, index: int) -> Any:
    return builder.add(offset, builder.mul(stride, ir.Constant(stride.type, index)))


def _scalar(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    address = lanes.pointer(context, builder, array_type, array, offset, to=lanes.F32)
    return lanes.splat(builder, builder.load(address, align=4))


def _places(context: Any, builder: Any, array: tuple[Any, Any], offset: Any, stride: Any, shape: tuple[int, int]) -> list[Any]:
    """Addresses of all members, row by row; `array` is its type and itself."""
    rows, width = shape
    starts = [_step(builder, offset, stride, i) for i in range(rows)]
    return [
        lanes.pointer(context, builder, *array, builder.add(start, ir.Constant(start.type, lanes.WIDTH * j)))
        for start in starts
        for j in range(width)
    ]


@intrinsic
def zeros(typingctx: Any, count: Any) -> Any:
    """A tile of `count` (a constant) members of zeros."""
    tile = types.UniTuple(lanes.LANES, count.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.pack_array(builder, [lanes.constant(0.0)] * tile.count)

    return tile(count), codegen


@intrinsic
def load(typingctx: Any, rows: Any, width: Any, array: Any, offset: Any, stride: Any) -> Any:
    """A tile of float32; `rows` and `width` are constants."""
    shape = rows.literal_value, width.literal_value
    tile = types.UniTuple(lanes.LANES, shape[0] * shape[1])

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, array, offset, stride = args
        places = _places(context, builder, (signature.args[2], array), offset, stride, shape)
        return cgutils.pack_array(builder, [builder.load(place, align=4) for place in places])

    return tile(rows, width, array, types.intp, types.intp), codegen


@intrinsic
def store(typingctx: Any, tile: Any, width: Any, array: Any, offset: Any, stride: Any) -> Any:
    """Writes a tile of so many members a row (a constant)."""
    shape = tile.count // width.literal_value, width.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile, _, array, offset, stride = args
        places = _places(context, builder, (signature.args[2], array), offset, stride, shape)
        for member, place in zip(_members(builder, tile), places, strict=True):
            builder.store(member, place, align=4)
        return context.get_dummy_value()

    return types.void(tile, width, array, types.intp, types.intp), codegen


@intrinsic
def add(typingctx: Any, a: Any, b: Any) -> Any:
    """Member by member."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pairs = zip(*(_members(builder, tile) for tile in args), strict=True)
        return cgutils.pack_array(builder, [builder.fadd(x, y) for x, y in pairs])

    return a(a, a), codegen


@intrinsic
def scale(typingctx: Any, tile: Any, rows: Any, array: Any, offset: Any) -> Any:
    """Row i (of so many, a constant) times array.flat[offset + i]."""
    width = tile.count // rows.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile, _, array, offset = args
        one = ir.Constant(offset.type, 1)
        factors = [
            _scalar(context, builder, signature.args[2], array, _step(builder, offset, one, i))
            for i in range(signature.args[0].count // width)
        ]
        scaled = [builder.fmul(member, factors[i // width]) for i, member in enumerate(_members(builder, tile))]
        return cgutils.pack_array(builder, scaled)

    return tile(tile, rows, array, types.intp), codegen


@intrinsic
def accumulate(typingctx: Any, tile: Any, array: Any, offset: Any, stride: Any, shared: Any) -> Any:
    """Member j of row i plus array.flat[offset + i * stride] * shared[j], rounded once; `shared` is as wide as the tile."""
    width = shared.count

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile, array, offset, stride, shared = args
        columns = _members(builder, shared)
        factors = [
            _scalar(context, builder, signature.args[1], array, _step(builder, offset, stride, i))
            for i in range(signature.args[0].count // width)
        ]
        sums = [
            lanes.fma(builder, factors[i // width], columns[i % width], member) for i, member in enumerate(_members(builder, tile))
        ]
        return cgutils.pack_array(builder, sums)

    return tile(tile, array, types.intp, types.intp, shared), codegen


@intrinsic
def row(typingctx: Any, width: Any, array: Any, offset: Any) -> Any:
    """`width` (a constant) neighbours of 16 numbers each, from array.flat[offset] on, as float32."""
    shared = types.UniTuple(lanes.LANES, width.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, array, offset = args
        starts = [builder.add(offset, ir.Constant(offset.type, lanes.WIDTH * j)) for j in range(shared.count)]
        return cgutils.pack_array(builder, [lanes.numbers(context, builder, signature.args[1], array, at) for at in starts])

    return shared(width, array, types.intp), codegen


@intrinsic
def column(typingctx: Any, array: Any, offsets: Any, shift: Any) -> Any:
    """Of each of the `offsets` (a tuple) the 16 numbers from array.flat[offset + shift] on, as float32."""
    shared = types.UniTuple(lanes.LANES, offsets.count)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, offsets, shift = args
        starts = [builder.add(offset, shift) for offset in _members(builder, offsets)]
        return cgutils.pack_array(builder, [lanes.numbers(context, builder, signature.args[0], array, at) for at in starts])

    return shared(array, offsets, types.intp), codegen
