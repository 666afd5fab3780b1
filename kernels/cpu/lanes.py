"""Sixteen float32 lanes as one value, for kernels written in Python: a token's lanes of a block, or sixteen elements of a head.

A `Lanes` value lives in registers only. Loads and stores take a C-contiguous array and a flat element offset; nothing is checked.
An array is float32, or, where it says "numbers", uint16 that holds the bits of float16: numba has no such array. Every operation is
an IEEE operation per lane; `sum_lanes` adds in one fixed order. NaN stays NaN.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import register_model
from numba.np.arrayobj import make_array

from kernels.cpu.jit import intrinsic

WIDTH = 16
F32 = ir.FloatType()
I8 = ir.IntType(8)
I32 = ir.IntType(32)
F16 = ir.HalfType()
VECTOR = ir.VectorType(F32, WIDTH)
HALVES = ir.VectorType(F16, WIDTH)
BITS = ir.VectorType(I32, WIDTH)


class LanesType(types.Type):  # type: ignore[misc]
    """numba's type of a `Lanes` value."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, VECTOR)


LANES = LanesType()
Lanes = Any
"""Annotation of a value of that type; Python never sees one."""


def is_half(array: Any) -> bool:
    """Whether an array type holds the bits of float16."""
    return bool(array.dtype == types.uint16)


def constant(value: float) -> ir.Constant:
    """The same constant in every lane."""
    return ir.Constant(VECTOR, [value] * WIDTH)


def pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, *, to: Any = VECTOR) -> Any:
    """Address of `array.flat[offset]`, as a pointer to the LLVM type `to`."""
    data = make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), to.as_pointer())


def call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Calls an LLVM intrinsic."""
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, [a.type for a in args]), name)
    return builder.call(function, args)


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    return call(builder, "llvm.fma.v16f32", VECTOR, a, b, c)


def prefetch_line(builder: Any, address: Any) -> None:
    """Asks for the cache line at a pointer to I8; any address is safe."""
    call(builder, "llvm.prefetch.p0", ir.VoidType(), address, I32(0), I32(2), I32(1))


def splat(builder: Any, scalar: Any) -> Any:
    """The scalar in every lane."""
    first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(BITS, [0] * WIDTH))


def splat_bits(builder: Any, scalar: Any) -> Any:
    """The 32-bit integer in every lane."""
    first = builder.insert_element(ir.Constant(BITS, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(BITS, [0] * WIDTH))


def unary(emit: Callable[[Any, Any], Any]) -> Any:
    """Lanes -> Lanes from an emitter."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return emit(builder, args[0])

    return LANES(LANES), codegen


def _binary(name: str) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return getattr(builder, name)(*args)

    return LANES(LANES, LANES), codegen


def numbers(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """The sixteen numbers from array.flat[offset] on, as float32."""
    if is_half(array_type):
        halves = builder.load(pointer(context, builder, array_type, array, offset, to=HALVES), align=2)
        return builder.fpext(halves, VECTOR)
    return builder.load(pointer(context, builder, array_type, array, offset), align=4)


@intrinsic
def load(typingctx: Any, array: Any, offset: Any) -> Any:
    """array.flat[offset : offset + 16], of numbers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return numbers(context, builder, signature.args[0], *args)

    return LANES(array, types.intp), codegen


@intrinsic
def load_up_to(typingctx: Any, array: Any, offset: Any, count: Any, other: Any) -> Any:
    """array.flat[offset : offset + count] where count < 16, with `other` (float32) in the lanes behind; else as `load`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, offset, count, other = args
        address = pointer(context, builder, signature.args[0], array, offset)
        buffer = cgutils.alloca_once(builder, VECTOR)
        with builder.if_else(builder.icmp_signed(">=", count, count.type(WIDTH))) as (enough, short):
            with enough:
                whole = builder.load(address, align=4)
                after_whole = builder.block
            with short:
                builder.store(splat(builder, other), buffer)
                cgutils.raw_memcpy(builder, buffer, address, builder.mul(count, count.type(4)), 1)
                part = builder.load(buffer)
                after_part = builder.block
        merged = builder.phi(VECTOR)
        merged.add_incoming(whole, after_whole)
        merged.add_incoming(part, after_part)
        return merged

    return LANES(array, types.intp, types.intp, types.float32), codegen


@intrinsic
def store(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
    """array.flat[offset : offset + 16] = value."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], pointer(context, builder, signature.args[0], args[0], args[1]), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, LANES), codegen


@intrinsic
def broadcast(typingctx: Any, value: Any) -> Any:
    """A float32 in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return splat(builder, args[0])

    return LANES(types.float32), codegen


@intrinsic
def add(typingctx: Any, a: Any, b: Any) -> Any:
    """a + b."""
    return _binary("fadd")


@intrinsic
def sub(typingctx: Any, a: Any, b: Any) -> Any:
    """a - b."""
    return _binary("fsub")


@intrinsic
def mul(typingctx: Any, a: Any, b: Any) -> Any:
    """a * b."""
    return _binary("fmul")


@intrinsic
def div(typingctx: Any, a: Any, b: Any) -> Any:
    """a / b."""
    return _binary("fdiv")


@intrinsic
def fused(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return fma(builder, *args)

    return LANES(LANES, LANES, LANES), codegen


def _greater(builder: Any, a: Any, b: Any) -> Any:
    """One instruction where what to do with NaN would cost two more."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def maximum(typingctx: Any, a: Any, b: Any) -> Any:
    """The greater one of each lane; b where one is NaN."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _greater(builder, *args)

    return LANES(LANES, LANES), codegen


@intrinsic
def keep(typingctx: Any, value: Any, low: Any, high: Any, other: Any) -> Any:
    """Lanes low..high-1 of `value`, `other` (float32) elsewhere."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, low, high, other = args
        index = ir.Constant(BITS, list(range(WIDTH)))
        bounds = [splat_bits(builder, builder.trunc(bound, I32)) for bound in (low, high)]
        inside = builder.and_(builder.icmp_signed(">=", index, bounds[0]), builder.icmp_signed("<", index, bounds[1]))
        return builder.select(inside, value, splat(builder, other))

    return LANES(LANES, types.intp, types.intp, types.float32), codegen


def _folded(builder: Any, value: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    """One lane of sixteen, of two halves, four times."""
    for half in (8, 4, 2, 1):
        low, high = (ir.Constant(ir.VectorType(I32, half), list(range(start, start + half))) for start in (0, half))
        value = combine(builder, builder.shuffle_vector(value, value, low), builder.shuffle_vector(value, value, high))
    return builder.extract_element(value, I32(0))


@intrinsic
def max_lanes(typingctx: Any, value: Any) -> Any:
    """The greatest lane, halves first as in `sum_lanes`; where some lane is NaN, one of them or NaN."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _folded(builder, args[0], _greater)

    return types.float32(LANES), codegen


@intrinsic
def any_at_least(typingctx: Any, a: Any, b: Any) -> Any:
    """Whether a >= b in some lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.bitcast(builder.fcmp_ordered(">=", *args), ir.IntType(WIDTH))
        return builder.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(WIDTH), 0))

    return types.boolean(LANES, LANES), codegen


@intrinsic
def first_lane(typingctx: Any, value: Any) -> Any:
    """Lane 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.extract_element(args[0], I32(0))

    return types.float32(LANES), codegen


@intrinsic
def sum_lanes(typingctx: Any, value: Any) -> Any:
    """The sum of all lanes, halves first: (i, i + 8), then (i, i + 4), (i, i + 2), (i, i + 1)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _folded(builder, args[0], lambda builder, low, high: builder.fadd(low, high))

    return types.float32(LANES), codegen


@intrinsic
def prefetch(typingctx: Any, array: Any, offset: Any) -> Any:
    """Asks for the cache line of array.flat[offset]; any offset is safe."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        prefetch_line(builder, pointer(context, builder, signature.args[0], *args, to=I8))
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen
