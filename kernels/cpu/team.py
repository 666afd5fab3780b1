"""A team: the threads of one kernel call, which go through its phases together and do not sleep in between.

A phase has a number of items. A worker takes items until none is left and then waits until those that others took are done. It
never waits for a worker that has not come, so a team cannot hang, however few threads it is given: one alone does everything.
But nothing may raise while an item is held (memory is allocated before the first one is taken): the others would wait for it.
"""

import platform
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu.jit import intrinsic, jit
from kernels.cpu.lanes import pointer
from kernels.layout import I64

SPINS: Final = 2000
"""Rounds of waiting, some 0.05 ms, after which the processor is offered to somebody else: it may be a member that needs it."""
_LINE: Final = 8
"""int64 in a cache line: counters that are written at once do not share one."""
_COUNT = ir.IntType(64)
_PAUSE: Final = "llvm.x86.sse2.pause" if platform.machine() in ("x86_64", "AMD64") else ""


@jit
def new_team(num_phases: int) -> I64:
    """Counters of a call that has so many phases: items taken and items done, a cache line each."""
    return np.zeros(2 * num_phases * _LINE, np.int64)


def _counter(context: Any, builder: Any, signature: Any, args: Any, *, done: bool) -> Any:
    at = builder.mul(args[1], ir.Constant(args[1].type, 2 * _LINE))
    place = builder.add(at, ir.Constant(at.type, _LINE if done else 0))
    return pointer(context, builder, signature.args[0], args[0], place, to=_COUNT)


@intrinsic
def take(typingctx: Any, team: Any, phase: Any) -> Any:
    """The next item of a phase; each worker gets another one. Behind the last item there is nothing to do."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _counter(context, builder, signature, args, done=False), _COUNT(1), "monotonic")

    return types.int64(team, types.intp), codegen


@intrinsic
def _add_done(typingctx: Any, team: Any, phase: Any) -> Any:
    """One more item of the phase is done, and all that was written for it can be seen by whoever reads the count."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _counter(context, builder, signature, args, done=True), _COUNT(1), "release")

    return types.int64(team, types.intp), codegen


@intrinsic
def _num_done(typingctx: Any, team: Any, phase: Any) -> Any:
    """Items of the phase that are done, with all that was written for them."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_counter(context, builder, signature, args, done=True), "acquire", align=8)

    return types.int64(team, types.intp), codegen


@intrinsic
def _pause(typingctx: Any) -> Any:
    """Tells the processor that this is a waiting loop."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _PAUSE:
            builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), _PAUSE), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _give_way(typingctx: Any) -> Any:
    """Lets another thread have the processor (POSIX sched_yield)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, function, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@jit
def done_then_take(team: I64, phase: int) -> Any:
    """Reports the item in work as done; gives the next one."""
    _add_done(team, phase)
    return take(team, phase)


@jit
def wait(team: I64, phase: int, num_items: int) -> None:
    """Returns once all items of the phase are done."""
    spins = 0
    while _num_done(team, phase) < num_items:
        spins += 1
        if spins < SPINS:
            _pause()
        else:
            _give_way()
