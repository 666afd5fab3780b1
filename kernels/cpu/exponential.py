"""exp and exp2 over lanes: one code path for every lane, within 2 ulp, so that no result depends on a library or a loop's tail."""

from typing import Any

from llvmlite import ir

from kernels.cpu.jit import intrinsic
from kernels.cpu.lanes import BITS, VECTOR, constant, fma, unary

ROUND = 12582912.0
"""1.5 * 2^23: adding it leaves the nearest integer in the low bits of the sum."""
EXP2 = (1.525273380405984e-5, 1.540353039338161e-4, 1.333355814642844e-3, 9.618129107628477e-3, 5.550410866482158e-2,
        2.402265069591007e-1, 6.931471805599453e-1, 1.0)  # fmt: skip
"""ln(2)^k / k!, k = 7..0; the next term is below 6e-9 on [-1/2, 1/2]."""
EXP = (1.984126984126984e-4, 1.388888888888889e-3, 8.333333333333333e-3, 4.166666666666666e-2, 1.666666666666667e-1, 0.5, 1.0, 1.0)
"""1 / k!, k = 7..0."""
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440054690583e-4
"""ln 2 in two parts; the high part has few enough bits that its product with a small integer is exact."""


def _clamped(builder: Any, x: Any, low: float, high: float) -> Any:
    x = builder.select(builder.fcmp_ordered("<", x, constant(low)), constant(low), x)
    return builder.select(builder.fcmp_ordered(">", x, constant(high)), constant(high), x)


def _polynomial(builder: Any, coefficients: tuple[float, ...], x: Any) -> Any:
    total = constant(coefficients[0])
    for coefficient in coefficients[1:]:
        total = fma(builder, total, x, constant(coefficient))
    return total


def _scaled(builder: Any, value: Any, rounded: Any, original: Any) -> Any:
    """value * 2^n where n sits in the low bits of `rounded`; NaN where `original` is."""
    exponent = builder.shl(builder.bitcast(rounded, BITS), ir.Constant(BITS, [23] * 16))
    scaled = builder.bitcast(builder.add(builder.bitcast(value, BITS), exponent), VECTOR)
    return builder.select(builder.fcmp_ordered("ord", original, original), scaled, original)


def _exp2(builder: Any, x: Any) -> Any:
    bounded = _clamped(builder, x, -126.0, 127.0)
    rounded = builder.fadd(bounded, constant(ROUND))
    fraction = builder.fsub(bounded, builder.fsub(rounded, constant(ROUND)))
    return _scaled(builder, _polynomial(builder, EXP2, fraction), rounded, x)


def _exp(builder: Any, x: Any) -> Any:
    bounded = _clamped(builder, x, -87.0, 88.0)
    rounded = fma(builder, bounded, constant(LOG2_E), constant(ROUND))
    whole = builder.fsub(constant(ROUND), rounded)
    rest = fma(builder, whole, constant(LN2_LOW), fma(builder, whole, constant(LN2_HIGH), bounded))
    return _scaled(builder, _polynomial(builder, EXP, rest), rounded, x)


@intrinsic
def exp2(typingctx: Any, x: Any) -> Any:
    """2^x; x is cut to [-126, 127], so that neither 0 nor infinity comes out."""
    return unary(_exp2)


@intrinsic
def exp(typingctx: Any, x: Any) -> Any:
    """e^x; x is cut to [-87, 88], so that neither 0 nor infinity comes out."""
    return unary(_exp)
