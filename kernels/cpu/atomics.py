"""Words of memory that several threads write: atomic operations on elements of an int64 array, and ways to wait for a change.

Their order is that of C++'s `std::memory_order_seq_cst`. Sleeping is Linux's futex(2); elsewhere it is a short nap.
"""

import platform
import sys
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu.jit import intrinsic
from kernels.cpu.lanes import pointer

_WORD: Final = ir.IntType(64)
_C_INT: Final = ir.IntType(32)
_PAUSE: Final = "llvm.x86.sse2.pause" if platform.machine() in ("x86_64", "AMD64") else ""
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0
"""Number of the system call; 0 = there is none that we know."""
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129
_NAP_US: Final = 200


def _at(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return pointer(context, builder, signature.args[0], args[0], args[1], to=_WORD)


def call_c(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Calls a function of the C library."""
    function = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), args)


@intrinsic
def fetch_add(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    """words[index] += value; gives what was there before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _at(context, builder, signature, args), args[2], "seq_cst")

    return types.int64(words, types.intp, types.int64), codegen


@intrinsic
def load(typingctx: Any, words: Any, index: Any) -> Any:
    """words[index], and all that was written before it became that."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_at(context, builder, signature, args), "seq_cst", align=8)

    return types.int64(words, types.intp), codegen


@intrinsic
def store(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    """words[index] = value; whoever loads it sees all that was written before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _at(context, builder, signature, args), "seq_cst", align=8)
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), codegen


@intrinsic
def replace(typingctx: Any, words: Any, index: Any, old: Any, new: Any) -> Any:
    """words[index] = new if it is `old`; says whether it was."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        result = builder.cmpxchg(_at(context, builder, signature, args), args[2], args[3], "seq_cst", "seq_cst")
        return builder.extract_value(result, 1)

    return types.boolean(words, types.intp, types.int64, types.int64), codegen


@intrinsic
def pause(typingctx: Any) -> Any:
    """Tells the processor that this is a waiting loop."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _PAUSE:
            call_c(builder, _PAUSE, ir.VoidType())
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def give_way(typingctx: Any) -> Any:
    """Lets another thread have the processor (POSIX sched_yield)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call_c(builder, "sched_yield", _C_INT)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def sleep_while(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    """Sleeps while words[index] is `value` (its lower half), until `wake`; may return early, so call it in a loop."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _FUTEX:
            address = builder.ptrtoint(_at(context, builder, signature, args), _WORD)
            call_c(builder, "syscall", _WORD, _WORD(_FUTEX), address, _WORD(_FUTEX_WAIT_PRIVATE), args[2], _WORD(0))
        else:
            call_c(builder, "usleep", _C_INT, _C_INT(_NAP_US))
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), codegen


@intrinsic
def wake(typingctx: Any, words: Any, index: Any, count: Any) -> Any:
    """Wakes up to `count` of those who sleep at words[index]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _FUTEX:
            address = builder.ptrtoint(_at(context, builder, signature, args), _WORD)
            call_c(builder, "syscall", _WORD, _WORD(_FUTEX), address, _WORD(_FUTEX_WAKE_PRIVATE), args[2])
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), codegen
