"""Counter-based uniform noise: a function of (seed, output position, token id) and of nothing else.

The 64-bit mix of seed + golden ratio * (position + 1), mixed twice, gives two 32-bit keys; a token's 32 bits are
mix(mix(id ^ low) + high). Given the keys this is a bijection of ids, so no two ids of a row draw the same number.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from kernels.cpu import lanes
from kernels.cpu.jit import intrinsic
from kernels.noise_key import GOLDEN, MIX_32, MIX_64

I64 = ir.IntType(64)


def _mix(builder: Any, x: Any, rounds: tuple[tuple[int, int], ...], last: int, constant: Any) -> Any:
    for shift, factor in rounds:
        x = builder.mul(builder.xor(x, builder.lshr(x, constant(shift))), constant(factor))
    return builder.xor(x, builder.lshr(x, constant(last)))


def _bits(value: int) -> ir.Constant:
    return ir.Constant(lanes.BITS, [value] * lanes.WIDTH)


@intrinsic
def row_key(typingctx: Any, seed: Any, position: Any) -> Any:
    """The uint64 key of a row's noise at one output position."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        seed, position = args
        counter = builder.mul(builder.add(position, I64(1)), I64(GOLDEN))
        once = _mix(builder, builder.add(seed, counter), MIX_64, 31, I64)
        return _mix(builder, builder.add(once, I64(GOLDEN)), MIX_64, 31, I64)

    return types.uint64(types.uint64, types.int64), codegen


@intrinsic
def uniform(typingctx: Any, key: Any, first: Any) -> Any:
    """Uniform numbers in (0, 1) of the ids first..first+15: (h + 1/2) / 2^32 in float32, at most 1 - 2^-24."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        key, first = args
        low, high, start = (
            lanes.splat_bits(builder, builder.trunc(x, lanes.I32)) for x in (key, builder.lshr(key, I64(32)), first)
        )
        ids = builder.add(start, ir.Constant(lanes.BITS, list(range(lanes.WIDTH))))
        mixed = _mix(builder, builder.xor(ids, low), MIX_32, 16, _bits)
        mixed = _mix(builder, builder.add(mixed, high), MIX_32, 16, _bits)
        value = lanes.fma(builder, builder.uitofp(mixed, lanes.VECTOR), lanes.constant(2.0**-32), lanes.constant(2.0**-33))
        top = lanes.constant(float(np.float32(1 - 2**-24)))
        return builder.select(builder.fcmp_ordered("<", value, top), value, top)

    return lanes.LANES(types.uint64, types.int64), codegen
