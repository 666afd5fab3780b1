"""Which processor a thread runs on, and how it leaves one. Linux only: elsewhere nobody knows and nobody moves."""

import os
import sys
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types

from kernels.cpu.atomics import call_c
from kernels.cpu.jit import intrinsic, jit
from kernels.cpu.lanes import pointer
from kernels.layout import I64

UNKNOWN: Final = -1
_LINUX: Final = sys.platform == "linux"
_MASK_WORDS: Final = 16
"""A set of 1024 processors, as the C library has it."""
_INT, _WORD = ir.IntType(32), ir.IntType(64)


def allowed() -> I64:
    """Processors that this process may use, one bit each, i64 [16]; those above 1023 are left out."""
    mask = np.zeros(_MASK_WORDS, np.uint64)
    for processor in os.sched_getaffinity(0) if _LINUX else ():
        if processor < 64 * _MASK_WORDS:
            mask[processor // 64] |= np.uint64(1) << np.uint64(processor % 64)
    return mask.view(np.int64)


@intrinsic
def processor(typingctx: Any) -> Any:
    """The number of the processor that runs this, or UNKNOWN (sched_getcpu(3))."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sext(call_c(builder, "sched_getcpu", _INT), _WORD) if _LINUX else _WORD(UNKNOWN)

    return types.int64(), codegen


@intrinsic
def _use(typingctx: Any, mask: Any) -> Any:
    """This thread runs on the processors of `mask` from now on (sched_setaffinity(2)); none that exists: nothing happens."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _LINUX:
            address = pointer(context, builder, signature.args[0], args[0], _WORD(0), to=_WORD)
            call_c(builder, "sched_setaffinity", _INT, _INT(0), _WORD(8 * _MASK_WORDS), address)
        return context.get_dummy_value()

    return types.void(mask), codegen


@jit
def avoid(other: int, allowed_mask: I64, scratch: I64) -> None:
    """Moves this thread to an allowed processor that is not `other`, if there is one. `scratch`: i64 [16]."""
    for word in range(_MASK_WORDS):
        scratch[word] = allowed_mask[word]
    if other < 64 * _MASK_WORDS:
        scratch[other // 64] &= ~(np.int64(1) << np.int64(other % 64))
        _use(scratch)
