"""The emitters of integer products: the processor's own instruction and the portable form give exact sums, both."""

import numba
import numpy as np
import pytest
from numba import types

from kernels.cpu import integer_lanes as ints
from kernels.cpu.jit import intrinsic
from kernels.cpu.lanes import pointer

FORMS = [pytest.param(True, marks=pytest.mark.skipif(not ints.HAS_AVX2, reason="this processor has no AVX2")), False]


def kernel(emit, *, native: bool, result):
    """Compiles a function (a, b, out) that applies an emitter to 32 bytes of each and stores what comes out."""

    @intrinsic
    def apply(typingctx, a, b, out):
        def codegen(context, builder, signature, args):
            zero = context.get_constant(types.intp, 0)
            vectors = [
                builder.load(pointer(context, builder, signature.args[i], args[i], zero, to=ints.BYTES), align=1) for i in (0, 1)
            ]
            address = pointer(context, builder, signature.args[2], args[2], zero, to=result)
            builder.store(emit(builder, *vectors, native=native), address, align=1)
            return context.get_dummy_value()

        return types.void(a, b, out), codegen

    @numba.njit
    def run(a, b, out):
        apply(a, b, out)

    return run


def neighbours(products):
    return products.reshape(-1, 2).sum(-1)


@pytest.mark.parametrize("native", FORMS)
def test_unsigned_times_signed(native):
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 16, 32).astype(np.uint8), rng.integers(-127, 128, 32).astype(np.int8)
    a[:4], b[:4] = 15, [127, 127, -127, -127]
    out = np.empty(16, np.int16)
    kernel(ints.products_of_unsigned, native=native, result=ints.SHORTS)(a, b, out)
    assert np.array_equal(out, neighbours(a.astype(int) * b.astype(int)))


@pytest.mark.parametrize("native", FORMS)
def test_signed_times_signed(native):
    rng = np.random.default_rng(2)
    a, b = rng.integers(-127, 128, (2, 32)).astype(np.int8)
    a[:6], b[:6] = [127, 127, -127, -127, 0, 5], [-127, -127, -127, -127, 9, 0]
    out = np.empty(16, np.int16)
    kernel(ints.products_of_signed, native=native, result=ints.SHORTS)(a, b, out)
    assert np.array_equal(out, neighbours(a.astype(int) * b.astype(int)))


@pytest.mark.parametrize("native", FORMS)
def test_sums_of_shorts(native):
    shorts = np.random.default_rng(3).integers(-32768, 32768, 16).astype(np.int16)
    out = np.empty(8, np.int32)

    def emit(builder, a, b, *, native):
        return ints.sums_of_shorts(builder, builder.bitcast(a, ints.SHORTS), native=native)

    kernel(emit, native=native, result=ints.INTS)(shorts.view(np.int8), shorts.view(np.int8), out)
    assert np.array_equal(out, neighbours(shorts.astype(int)))
