"""Vectors of integers for kernels written in Python: emitters of LLVM IR. Products of bytes are in `byte_products`.

Legend: a quad is 4 neighbouring inputs, one byte each; 8 outputs x 4 inputs fill a vector of 256 bits, 16 x 4 one of 512.
"""

from dataclasses import dataclass
from typing import Any, Final

from llvmlite import ir

from kernels.cpu.lanes import F32, I32, call

I1 = ir.IntType(1)
I16 = ir.IntType(16)


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vector types of a number of outputs side by side: quads of all of them, and one number for each."""

    bytes: ir.VectorType
    shorts: ir.VectorType
    ints: ir.VectorType
    floats: ir.VectorType
    halves: ir.VectorType

    @property
    def outputs(self) -> int:
        """How many."""
        return int(self.ints.count)


def _vectors(outputs: int) -> Vectors:
    return Vectors(
        bytes=ir.VectorType(ir.IntType(8), 4 * outputs),
        shorts=ir.VectorType(I16, 2 * outputs),
        ints=ir.VectorType(I32, outputs),
        floats=ir.VectorType(F32, outputs),
        halves=ir.VectorType(ir.HalfType(), outputs),
    )


OF_8: Final = _vectors(8)
OF_16: Final = _vectors(16)


def every(vector: Any, value: float) -> ir.Constant:
    """The same constant in every lane of a vector type."""
    return ir.Constant(vector, [value] * vector.count)


def splat(builder: Any, vector: Any, scalar: Any) -> Any:
    """The scalar in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(first, first, every(ir.VectorType(I32, vector.count), 0))


def quad_of_all(builder: Any, vectors: Vectors, address: Any) -> Any:
    """Bytes: the 4 at `address` (a pointer to i32), once for each output."""
    return builder.bitcast(splat(builder, vectors.ints, builder.load(address, align=1)), vectors.bytes)


def halves(builder: Any, vectors: Vectors, codes: Any) -> tuple[Any, Any]:
    """(low, high) 4 bits of each byte, as bytes."""
    low = builder.and_(codes, every(vectors.bytes, 15))
    shifted = builder.lshr(builder.bitcast(codes, vectors.shorts), every(vectors.shorts, 4))
    return low, builder.and_(builder.bitcast(shifted, vectors.bytes), every(vectors.bytes, 15))


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Floats: a * b + c, rounded once."""
    return call(builder, f"llvm.fma.v{a.type.count}f32", a.type, a, b, c)


def neighbours(builder: Any, vector: Any) -> Any:
    """Lane 0 plus lane 1, lane 2 plus lane 3, ..."""
    count = vector.type.count // 2
    even, odd = (ir.Constant(ir.VectorType(I32, count), [2 * i + first for i in range(count)]) for first in (0, 1))
    return builder.add(builder.shuffle_vector(vector, vector, even), builder.shuffle_vector(vector, vector, odd))
