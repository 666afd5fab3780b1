"""Vectors of 256 bits for kernels written in Python: emitters of LLVM IR. Products of bytes are in `byte_products`.

Legend: a quad is 4 neighbouring inputs, one byte each; 8 outputs x 4 inputs fill a vector of 32 bytes.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.lanes import F32, I32, call

I1 = ir.IntType(1)
I16 = ir.IntType(16)
BYTES = ir.VectorType(ir.IntType(8), 32)
SHORTS = ir.VectorType(I16, 16)
INTS = ir.VectorType(I32, 8)
FLOATS = ir.VectorType(F32, 8)
HALVES = ir.VectorType(ir.HalfType(), 8)


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


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """FLOATS: a * b + c, rounded once."""
    return call(builder, "llvm.fma.v8f32", FLOATS, a, b, c)


def neighbours(builder: Any, vector: Any) -> Any:
    """Lane 0 plus lane 1, lane 2 plus lane 3, ..."""
    count = vector.type.count // 2
    even, odd = (ir.Constant(ir.VectorType(I32, count), [2 * i + first for i in range(count)]) for first in (0, 1))
    return builder.add(builder.shuffle_vector(vector, vector, even), builder.shuffle_vector(vector, vector, odd))
