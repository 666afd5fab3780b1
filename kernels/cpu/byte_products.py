"""Sums of byte products, the inside of `group_tile`: three forms of the same exact integers, and which of them runs here.

Every form is exact, so all give the same bits; they differ in instructions only. What none may exceed, and none does, since codes
are 0..15 or -127..127: an int16 lane holds 16 products of 15 * 127 (30,480) or 2 of 127 * 127 (32,258), so AVX2's saturating
`pmaddubsw` never saturates; an int32 lane holds the 32 products of a group (516,128), which float32 holds too. VNNI's `vpdpbusd`
(not `vpdpbusds`) adds 4 products to int32 and saturates nowhere.

Legend: codes and `signed` are bytes of 8 or 16 outputs x 4 inputs, a lane of the sums is an output.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from kernels.cpu.integer_lanes import I1, I16, OF_8, OF_16, Vectors, every, neighbours
from kernels.cpu.jit import cache_apart, intrinsic, jit, processor_has
from kernels.cpu.lanes import call, pointer
from kernels.group_weights import LARGEST
from kernels.packed_weights import I8, U8

log = logging.getLogger(__name__)

I32s = NDArray[np.int32]
WIDE: Final = ir.VectorType(I16, 32)


class Form(Protocol):
    """Emitters of one form. `small` is the type in which a group of 4-bit codes is summed, before `small_sum` makes ints of it.

    Attributes:
        name: for people.
        vectors: the types that it works on.
        raised: what `add_bytes` wants added to weights of -127..127 before; their sum is then too great by that times the sum of
            the signed bytes.
    """

    name: str
    vectors: Vectors
    small: ir.VectorType
    raised: int

    def add_small(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """total + codes of 0..15 times -127..127; at most a group of them fits."""
        ...

    def small_sum(self, builder: Any, total: Any) -> Any:
        """Ints: what `add_small` summed."""
        ...

    def add_signed(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """Ints: total + -127..127 times -127..127."""
        ...

    def add_bytes(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """Ints: total + weights, `raised`, times -127..127."""
        ...


class Portable:
    """Plain LLVM IR, for any processor."""

    name = "portable"
    vectors = OF_8
    small = OF_8.ints
    raised = 0

    def add_small(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`."""
        return self._add(builder, total, builder.zext(codes, WIDE), builder.sext(signed, WIDE))

    def small_sum(self, builder: Any, total: Any) -> Any:
        """See `Form`."""
        return total

    def add_signed(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`."""
        return self._add(builder, total, builder.sext(codes, WIDE), builder.sext(signed, WIDE))

    def add_bytes(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`."""
        return self.add_signed(builder, total, codes, signed)

    def _add(self, builder: Any, total: Any, a: Any, b: Any) -> Any:
        pairs = neighbours(builder, builder.mul(a, b))
        return builder.add(total, neighbours(builder, builder.sext(pairs, ir.VectorType(self.small.element, 16))))


class Avx2:
    """`pmaddubsw` and `pmaddwd`: a group of 4-bit codes stays in int16 until its end."""

    name = "avx2"
    vectors = OF_8
    small = OF_8.shorts
    raised = 0

    def add_small(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`."""
        return builder.add(total, call(builder, "llvm.x86.avx2.pmadd.ub.sw", self.small, codes, signed))

    def small_sum(self, builder: Any, total: Any) -> Any:
        """See `Form`."""
        return call(builder, "llvm.x86.avx2.pmadd.wd", self.vectors.ints, total, every(self.small, 1))

    def add_signed(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`."""
        pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", self.small, *without_sign(builder, codes, signed))
        return builder.add(total, self.small_sum(builder, pairs))

    def add_bytes(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`."""
        return self.add_signed(builder, total, codes, signed)


class Vnni:
    """`vpdpbusd`, one instruction for 32 products: AVX512-VNNI with VL, or AVX-VNNI. LLVM takes the one that the processor has."""

    name = "vnni"
    vectors = OF_8
    small = OF_8.ints
    raised = 128
    product = "llvm.x86.avx512.vpdpbusd.256"

    def add_small(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`. Operands as i32: LLVM before 22 knows no other, and 22 turns them into bytes by itself."""
        operands = (builder.bitcast(operand, self.small) for operand in (codes, signed))
        return call(builder, self.product, self.small, total, *operands)

    def small_sum(self, builder: Any, total: Any) -> Any:
        """See `Form`."""
        return total

    def add_signed(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`."""
        return self.add_small(builder, total, *without_sign(builder, codes, signed))

    def add_bytes(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`. The first operand has no sign: weights are raised once, at load, so that none must be taken off here."""
        return self.add_small(builder, total, codes, signed)


class Vnni512(Vnni):
    """The same for 64 products and 16 outputs: AVX512-VNNI with BW."""

    name = "vnni512"
    vectors = OF_16
    small = OF_16.ints
    product = "llvm.x86.avx512.vpdpbusd.512"

    def add_signed(self, builder: Any, total: Any, codes: Any, signed: Any) -> Any:
        """See `Form`. There is no `psign` of 512 bits; a code of 0 needs no sign."""
        zero = every(self.vectors.bytes, 0)
        turned = builder.select(builder.icmp_signed("<", codes, zero), builder.sub(zero, signed), signed)
        return self.add_small(builder, total, call(builder, "llvm.abs.v64i8", self.vectors.bytes, codes, I1(0)), turned)


def without_sign(builder: Any, codes: Any, signed: Any) -> tuple[Any, Any]:
    """|codes| and `signed` with the codes' signs: the same products, the first factor unsigned. One |codes| serves all rows."""
    kind = OF_8.bytes
    return call(builder, "llvm.abs.v32i8", kind, codes, I1(0)), call(builder, "llvm.x86.avx2.psign.b", kind, signed, codes)


def products_of(form: Form) -> Callable[..., Any]:
    """An intrinsic (codes u8, weights i8, signed i8, each [4 N]; small, large, i32 [N], of N outputs): both kinds of products."""
    vectors = form.vectors

    def products(typingctx: Any, codes: Any, weights: Any, signed: Any, small: Any, large: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def at(index: int, to: Any) -> Any:
                zero = context.get_constant(types.intp, 0)
                return pointer(context, builder, signature.args[index], args[index], zero, to=to)

            few, some, x = (builder.load(at(index, vectors.bytes), align=1) for index in range(3))
            total = form.small_sum(builder, form.add_small(builder, every(form.small, 0), few, x))
            builder.store(total, at(3, vectors.ints), align=4)
            builder.store(form.add_signed(builder, every(vectors.ints, 0), some, x), at(4, vectors.ints), align=4)
            return context.get_dummy_value()

        return types.void(codes, weights, signed, small, large), codegen

    return intrinsic(products)


_products = products_of(Vnni())
_products_512 = products_of(Vnni512())


@jit
def _vnni(codes: U8, weights: I8, signed: I8, small: I32s, large: I32s) -> None:
    _products(codes, weights, signed, small, large)


@jit
def _vnni_512(codes: U8, weights: I8, signed: I8, small: I32s, large: I32s) -> None:
    _products_512(codes, weights, signed, small, large)


_RUNS: Final = {Vnni.name: _vnni, Vnni512.name: _vnni_512}


def is_exact(form: Form, run: Callable[..., None] | None = None) -> bool:
    """Runs `products_of` a form on one vector, extremes among its codes, and compares every lane with plain integers."""
    outputs, rng = form.vectors.outputs, np.random.default_rng(1)
    most = 255 if form.raised else 15  # forms with weights raised take any byte
    codes = rng.integers(0, most + 1, 4 * outputs).astype(np.uint8)
    weights, signed = rng.integers(-LARGEST, LARGEST + 1, (2, 4 * outputs)).astype(np.int8)
    codes[:8], weights[:8] = most, [LARGEST] * 4 + [-LARGEST] * 4
    signed[:12] = [LARGEST] * 6 + [-LARGEST] * 6
    sums = np.zeros((2, outputs), np.int32)
    (run or _RUNS[form.name])(codes, weights, signed, sums[0], sums[1])
    products = [x.astype(int) * signed.astype(int) for x in (codes, weights)]
    return np.array_equal(sums, np.reshape(products, (2, outputs, 4)).sum(2))


def choose(has: Callable[..., bool], *, exact: Callable[[Form], bool] = is_exact) -> Form:
    """The best form for a processor that `has` such features; `exact` says whether one with VNNI computes right there.

    When it does not, a warning says so, and kernels that are defined from now on are cached apart from those with VNNI.
    """
    vnni: Form | None = None
    if has("avx512vnni", "avx512vl", "avx512bw", "avx2"):
        vnni = Vnni512()
    elif has("avx512vnni", "avx512vl", "avx2") or has("avxvnni", "avx2"):
        vnni = Vnni()
    if vnni is not None:
        if exact(vnni):
            return vnni
        log.warning("vpdpbusd of this processor does not give the sums of plain integers: integer layers go on with AVX2")
        cache_apart(Avx2.name)
    return Avx2() if has("avx2") else Portable()


@functools.cache
def chosen() -> Form:
    """The form of this process. Chosen once, before the first kernel with it is defined."""
    return choose(processor_has)
