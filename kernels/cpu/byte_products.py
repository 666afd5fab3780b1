"""Sums of byte products, the inside of `group_tile`: three forms of the same exact integers, and which of them runs here.

Every form is exact, so all give the same bits; they differ in instructions only. What none may exceed, and none does, since codes
are 0..15 or -127..127: an int16 lane holds 16 products of 15 * 127 (30,480) or 2 of 127 * 127 (32,258), so AVX2's saturating
`pmaddubsw` never saturates; an int32 lane holds the 32 products of a group (516,128), which float32 holds too. VNNI's `vpdpbusd`
(not `vpdpbusds`) adds 4 products to int32 and saturates nowhere.

Legend: `unsigned` and `signed` are BYTES of 8 outputs x 4 inputs, a lane of the sums is an output.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from kernels.cpu.integer_lanes import BYTES, I1, I16, INTS, SHORTS, every, neighbours
from kernels.cpu.jit import cache_apart, intrinsic, jit, processor_has
from kernels.cpu.lanes import call, pointer
from kernels.group_weights import I8, LARGEST, U8

log = logging.getLogger(__name__)

I32s = NDArray[np.int32]
WIDE: Final = ir.VectorType(I16, 32)


class Form(Protocol):
    """Emitters of one form. `small` is the type in which a group of 4-bit codes is summed, before `small_sum` makes INTS of it.

    Attributes:
        name: for people.
    """

    name: str
    small: ir.VectorType

    def add_small(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """total + codes of 0..15 times -127..127; at most a group of them fits."""
        ...

    def small_sum(self, builder: Any, total: Any) -> Any:
        """INTS: what `add_small` summed."""
        ...

    def add_signed(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """INTS: total + -127..127 times -127..127."""
        ...


class Portable:
    """Plain LLVM IR, for any processor."""

    name = "portable"
    small = INTS

    def add_small(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`."""
        return self._add(builder, total, builder.zext(codes, WIDE), builder.sext(signed, WIDE))

    def small_sum(self, builder: Any, total: Any) -> Any:
        """See `Form`."""
        return total

    def add_signed(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`."""
        return self._add(builder, total, builder.sext(codes, WIDE), builder.sext(signed, WIDE))

    def _add(self, builder: Any, total: Any, a: Any, b: Any) -> Any:
        pairs = neighbours(builder, builder.mul(a, b))
        return builder.add(total, neighbours(builder, builder.sext(pairs, ir.VectorType(INTS.element, 16))))


class Avx2:
    """`pmaddubsw` and `pmaddwd`: a group of 4-bit codes stays in int16 until its end."""

    name = "avx2"
    small = SHORTS

    def add_small(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`."""
        return builder.add(total, call(builder, "llvm.x86.avx2.pmadd.ub.sw", SHORTS, codes, signed))

    def small_sum(self, builder: Any, total: Any) -> Any:
        """See `Form`."""
        return call(builder, "llvm.x86.avx2.pmadd.wd", INTS, total, every(SHORTS, 1))

    def add_signed(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`."""
        pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", SHORTS, *without_sign(builder, codes, signed))
        return builder.add(total, self.small_sum(builder, pairs))


class Vnni:
    """`vpdpbusd`, one instruction for 32 products: AVX512-VNNI with VL, or AVX-VNNI. LLVM takes the one that the processor has."""

    name = "vnni"
    small = INTS

    def add_small(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`. Operands as 8 x i32: LLVM before 22 knows no other, and 22 turns them into bytes by itself."""
        operands = (builder.bitcast(operand, INTS) for operand in (codes, signed))
        return call(builder, "llvm.x86.avx512.vpdpbusd.256", INTS, total, *operands)

    def small_sum(self, builder: Any, total: Any) -> Any:
        """See `Form`."""
        return total

    def add_signed(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`."""
        return self.add_small(builder, total, *without_sign(builder, codes, signed))


def without_sign(builder: Any, codes: Any, signed: Any) -> tuple[Any, Any]:
    """|codes| and `signed` with the codes' signs: the same products, the first factor unsigned. One |codes| serves all rows."""
    return call(builder, "llvm.abs.v32i8", BYTES, codes, I1(0)), call(builder, "llvm.x86.avx2.psign.b", BYTES, signed, codes)


def products_of(form: Form) -> Callable[..., Any]:
    """An intrinsic (codes u8, weights i8, signed i8, each [32]; small, large, i32 [8]): both kinds of products of one vector."""

    def products(typingctx: Any, codes: Any, weights: Any, signed: Any, small: Any, large: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def at(index: int, to: Any) -> Any:
                zero = context.get_constant(types.intp, 0)
                return pointer(context, builder, signature.args[index], args[index], zero, to=to)

            few, some, x = (builder.load(at(index, BYTES), align=1) for index in range(3))
            total = form.small_sum(builder, form.add_small(builder, every(form.small, 0), few, x))
            builder.store(total, at(3, INTS), align=4)
            builder.store(form.add_signed(builder, every(INTS, 0), some, x), at(4, INTS), align=4)
            return context.get_dummy_value()

        return types.void(codes, weights, signed, small, large), codegen

    return intrinsic(products)


_products = products_of(Vnni())


@jit
def _vnni(codes: U8, weights: I8, signed: I8, small: I32s, large: I32s) -> None:
    _products(codes, weights, signed, small, large)


def is_exact(run: Callable[..., None] = _vnni) -> bool:
    """Runs `products_of` a form on one vector, extremes among its codes, and compares every lane with plain integers."""
    rng = np.random.default_rng(1)
    codes, weights = rng.integers(0, 16, 32).astype(np.uint8), rng.integers(-LARGEST, LARGEST + 1, 32).astype(np.int8)
    signed = rng.integers(-LARGEST, LARGEST + 1, 32).astype(np.int8)
    codes[:8], weights[:8] = 15, [LARGEST] * 4 + [-LARGEST] * 4
    signed[:12] = [LARGEST] * 6 + [-LARGEST] * 6
    sums = np.zeros((2, 8), np.int32)
    run(codes, weights, signed, sums[0], sums[1])
    products = [x.astype(int) * signed.astype(int) for x in (codes, weights)]
    return np.array_equal(sums, np.reshape(products, (2, 8, 4)).sum(2))


def choose(has: Callable[..., bool], *, exact: Callable[[], bool] = is_exact) -> Form:
    """The best form for a processor that `has` such features; `exact` says whether VNNI computes right there.

    When it does not, a warning says so, and kernels that are defined from now on are cached apart from those with VNNI.
    """
    if has("avx512vnni", "avx512vl", "avx2") or has("avxvnni", "avx2"):
        if exact():
            return Vnni()
        log.warning("vpdpbusd of this processor does not give the sums of plain integers: integer layers go on with AVX2")
        cache_apart(Avx2.name)
    return Avx2() if has("avx2") else Portable()


@functools.cache
def chosen() -> Form:
    """The form of this process. Chosen once, before the first kernel with it is defined."""
    return choose(processor_has)
