"""256-bit integer products for kernels written in Python: emitters of LLVM IR, in the processor's own instruction where it has one.

Legend: a quad is 4 neighbouring inputs, one byte each; 8 outputs x 4 inputs fill a vector of 32 bytes.
"""

from typing import Any, Final

import llvmlite.binding
from llvmlite import ir

from kernels.cpu.lanes import F32, I32, call

I1 = ir.IntType(1)
I16 = ir.IntType(16)
BYTES = ir.VectorType(ir.IntType(8), 32)
SHORTS = ir.VectorType(I16, 16)
INTS = ir.VectorType(I32, 8)
FLOATS = ir.VectorType(F32, 8)
HALVES = ir.VectorType(ir.HalfType(), 8)
HAS_AVX2: Final = bool(llvmlite.binding.get_host_cpu_features().get("avx2"))


def every(vector: Any, value: float) -> ir.Constant:
    """The same constant in every lane of a vector type."""
    return ir.Constant(vector, [value] * vector.count)


def splat(builder: Any, vector: Any, scalar: Any) -> Any:
    """The scalar in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(first, first, every(ir.VectorType(I32, vector.count), 0))


def quad_of_all(builder: Any, address: Any) -> Any:
    """BYTES: the 4 bytes at `address` (a pointer to i32), once for each output."""
    return builder.bitcast(splat(builder, INTS, builder.load(address, align=1)), BYTES)


def halves(builder: Any, codes: Any) -> tuple[Any, Any]:
    """(low, high) 4 bits of each byte, as BYTES."""
    low = builder.and_(codes, every(BYTES, 15))
    shifted = builder.bitcast(builder.lshr(builder.bitcast(codes, SHORTS), every(SHORTS, 4)), BYTES)
    return low, builder.and_(shifted, every(BYTES, 15))


def products_of_unsigned(builder: Any, unsigned: Any, signed: Any, *, native: bool = HAS_AVX2) -> Any:
    """SHORTS: sums of neighbouring products, u8 times i8. The caller sees to it that no pair leaves int16."""
    if native:
        return call(builder, "llvm.x86.avx2.pmadd.ub.sw", SHORTS, unsigned, signed)
    wide = ir.VectorType(I16, 32)
    return _neighbours(builder, builder.mul(builder.zext(unsigned, wide), builder.sext(signed, wide)))


def products_of_signed(builder: Any, a: Any, b: Any, *, native: bool = HAS_AVX2) -> Any:
    """SHORTS: sums of neighbouring products, i8 times i8, both of -127..127."""
    if native:
        magnitude = call(builder, "llvm.abs.v32i8", BYTES, b, I1(0))
        return products_of_unsigned(builder, magnitude, call(builder, "llvm.x86.avx2.psign.b", BYTES, a, b))
    wide = ir.VectorType(I16, 32)
    return _neighbours(builder, builder.mul(builder.sext(a, wide), builder.sext(b, wide)))


def sums_of_shorts(builder: Any, shorts: Any, *, native: bool = HAS_AVX2) -> Any:
    """INTS: sums of neighbouring lanes."""
    if native:
        return call(builder, "llvm.x86.avx2.pmadd.wd", INTS, shorts, every(SHORTS, 1))
    return _neighbours(builder, builder.sext(shorts, ir.VectorType(I32, 16)))


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """FLOATS: a * b + c, rounded once."""
    return call(builder, "llvm.fma.v8f32", FLOATS, a, b, c)


def _neighbours(builder: Any, vector: Any) -> Any:
    """Lane 0 plus lane 1, lane 2 plus lane 3, ..."""
    count = vector.type.count // 2
    even, odd = (ir.Constant(ir.VectorType(I32, count), [2 * i + first for i in range(count)]) for first in (0, 1))
    return builder.add(builder.shuffle_vector(vector, vector, even), builder.shuffle_vector(vector, vector, odd))
