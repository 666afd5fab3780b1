"""The threads that help a kernel: whoever is awake joins in, and nobody waits for one who is not.

A kernel that has work for several threads posts it, works on it itself, closes the posting and waits for those who joined. A helper
whose processor somebody else uses just does not come: with a foreign process on one of two cores a step then takes what one
core needs. (A parallel region of OpenMP waits for every thread of its team at its end, so there each of a hundred regions of a step
lasts until the scheduler of the system runs the one that is missing: 14 ms became 280.)

One posting at a time: a second caller finds the crew busy and works alone.

What is posted is a function whose threads share the work by `team.take`, so that it is right with any number of them. It must not
raise once it has taken an item that others wait for.
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu.atomics import fetch_add, give_way, load, pause, replace, sleep_while, store, wake
from kernels.cpu.jit import inlined, intrinsic, jit
from kernels.cpu.lanes import pointer
from kernels.cpu.placement import UNKNOWN, allowed, avoid, processor
from kernels.layout import I64

log = logging.getLogger(__name__)

SPINS: Final = 10_000
"""Rounds in which a helper looks for the next posting, some 0.25 ms, before it sleeps: the gap between two kernels of a step."""
SPINS_AT_END: Final = 2000
"""Rounds of waiting for helpers to leave after which the processor is offered to somebody else: one of them may need it."""
_LINE: Final = 8
"""int64 in a cache line: words that different threads write do not share one."""
_POSTING, _TASK, _POSTS, _SLEEPERS, _BUSY, _STOP = (_LINE * i for i in range(6))
"""Where on the board: what is posted, as generation * 2**16 + 2**15 if it is open + number of helpers inside; the task, which is a
function, the address of its arguments, most helpers, whether it failed, and the caller's processor; a count that goes up with each
posting, on which helpers sleep; how many do; whether a caller has the board; whether helpers are to end."""
_ARGUMENTS, _MOST, _FAILED, _PROCESSOR = (_TASK + i for i in range(1, 5))
_OPEN: Final = 1 << 15
_GENERATION: Final = 1 << 16
_WORD: Final = ir.IntType(64)


@intrinsic
def _write_task(typingctx: Any, board: Any, function: Any, args: Any) -> Any:
    """Writes `function`, compiled for the tuple `args`, and where they lie: in the caller's frame."""
    call = function.get_call_type(typingctx, args.types, {})

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        compiled = function.dispatcher.get_compile_result(call)
        context.add_linking_libs([compiled.library])
        frame = cgutils.alloca_once_value(builder, _lent(context, builder, args, values[2]))
        entry = _entry(context, builder.module, compiled, frame.type)
        for index, value in ((_TASK, entry), (_ARGUMENTS, frame)):
            builder.store(builder.ptrtoint(value, _WORD), _at(context, builder, signature, values[0], index))
        return context.get_dummy_value()

    return types.void(board, function, args), codegen


def _lent(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The same arrays without their owners, who wait: threads that count references together slow each other down."""
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo, array.parent = (cgutils.get_null_value(part.type) for part in (array.meminfo, array.parent))
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for i, part in enumerate(kind.types):
            value = builder.insert_value(value, _lent(context, builder, part, builder.extract_value(value, i)), i)
    return value


def _at(context: Any, builder: Any, signature: Any, board: Any, index: int) -> Any:
    return pointer(context, builder, signature.args[0], board, _WORD(index), to=_WORD)


def _entry(context: Any, module: Any, compiled: Any, frame: Any) -> Any:
    """A C function that calls `compiled` with the arguments at an address, and says whether that raised."""
    function = ir.Function(module, ir.FunctionType(_WORD, [_WORD]), module.get_unique_name(f"crew.{compiled.fndesc.mangled_name}"))
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block())
    packed = builder.load(builder.inttoptr(function.args[0], frame))
    args = [builder.extract_value(packed, i) for i in range(len(frame.pointee.elements))]
    callee, signature = context.declare_function(module, compiled.fndesc), compiled.signature
    status, _ = context.call_conv.call_function(builder, callee, signature.return_type, signature.args, args)
    builder.ret(builder.zext(status.is_error, _WORD))
    return function


@intrinsic
def _do(typingctx: Any, board: Any) -> Any:
    """Runs the task; not 0 = it raised."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        entry, frame = (builder.load(_at(context, builder, signature, args[0], index)) for index in (_TASK, _ARGUMENTS))
        return builder.call(builder.inttoptr(entry, ir.FunctionType(_WORD, [_WORD]).as_pointer()), [frame])

    return types.int64(board), codegen


@jit
def _open(board: I64, most: int) -> None:
    """Publishes the task."""
    store(board, _MOST, most)
    store(board, _FAILED, 0)
    store(board, _PROCESSOR, processor())
    store(board, _POSTING, (load(board, _POSTING) // _GENERATION + 1) * _GENERATION + _OPEN)
    fetch_add(board, _POSTS, 1)
    if load(board, _SLEEPERS):
        wake(board, _POSTS, most)


@jit
def _work(board: I64) -> None:
    if _do(board):
        store(board, _FAILED, 1)


@jit
def _close(board: I64) -> bool:
    """Lets nobody in any more, waits for those inside, gives the board away; says whether anybody failed."""
    spins = 0
    fetch_add(board, _POSTING, -_OPEN)
    while load(board, _POSTING) % _OPEN:
        spins += 1
        if spins < SPINS_AT_END:
            pause()
        else:
            give_way()
    failed = bool(load(board, _FAILED))
    store(board, _BUSY, 0)
    return failed


@inlined
def together(board: I64, most: int, function: Callable[..., None], args: tuple[Any, ...]) -> None:
    """function(*args), on this thread and on up to `most` helpers that have the time. Called by compiled code, with arrays that its
    own caller keeps: helpers get them without a reference.

    Raises:
        MemoryError: the function raised on one of the threads. (Nothing else is expected of a kernel whose arguments were checked.)
    """
    if most > 0 and replace(board, _BUSY, 0, 1):
        _write_task(board, function, args)
        _open(board, most)
        _work(board)
        if _close(board):
            raise MemoryError("a kernel could not get its scratch memory")
    else:
        function(*args)


@jit
def _has_room(board: I64, posting: int, last: int) -> bool:
    """Whether a helper whose last posting had the generation `last` may join this one."""
    return posting // _GENERATION != last and posting & _OPEN != 0 and posting % _OPEN < load(board, _MOST)


@jit
def _help(board: I64, allowed_mask: I64) -> None:
    """A helper's life, from one posting to the next."""
    spins, last, scratch = 0, 0, np.empty_like(allowed_mask)
    while not load(board, _STOP):
        posting = load(board, _POSTING)
        if _has_room(board, posting, last):
            # Not behind the door: where it moves to it may have to wait for its turn, and then the caller would wait for it.
            if processor() == load(board, _PROCESSOR) != UNKNOWN:
                avoid(load(board, _PROCESSOR), allowed_mask, scratch)
            if replace(board, _POSTING, posting, posting + 1):
                spins, last = 0, posting // _GENERATION
                _work(board)
                fetch_add(board, _POSTING, -1)
        elif spins < SPINS:
            spins += 1
            pause()
        else:
            _sleep(board, last)
            spins = 0


@jit
def _wake_all(board: I64) -> None:
    fetch_add(board, _POSTS, 1)
    wake(board, _POSTS, 1 << 20)


@jit
def _sleep(board: I64, last: int) -> None:
    """Until something else is posted, unless there is something to do already."""
    posts = load(board, _POSTS)
    fetch_add(board, _SLEEPERS, 1)
    if not load(board, _STOP) and not _has_room(board, load(board, _POSTING), last):
        sleep_while(board, _POSTS, posts)
    fetch_add(board, _SLEEPERS, -1)


class Crew:
    """Helpers of this process. Threads are started when they are first wanted, and end with the process."""

    def __init__(self) -> None:
        self.board: I64 = np.zeros(_LINE * 6, np.int64)
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()

    def at_least(self, num_helpers: int) -> None:
        """Starts those that are missing. With fewer than that, where the system gives no more, everything goes on more slowly."""
        with self._starting:
            if num_helpers and not self._threads:
                _help(np.ones_like(self.board), allowed())  # compiled here, not by a thread that the process may end under
            while len(self._threads) < num_helpers:
                name = f"kernel-helper-{len(self._threads)}"
                thread = threading.Thread(target=_help, args=(self.board, allowed()), name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    log.warning("kernels go on with %d helpers instead of %d: %s", len(self._threads), num_helpers, error)
                    return
                self._threads.append(thread)

    def end(self) -> None:
        """Joins them: compiled code must not run while the interpreter takes itself apart."""
        self.board[_STOP] = 1
        _wake_all(self.board)
        for thread in self._threads:
            thread.join(1)


_crew: Final = Crew()
_calling_thread = threading.local()
atexit.register(_crew.end)


def _num_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_num_threads(count: int) -> None:
    """How many threads the kernels called from this thread use, itself included; 1 or more. There are never more than processors:
    a helper without one would be waited for."""
    _calling_thread.count = max(1, count)
    _crew.at_least(min(count, _num_processors()) - 1)


def num_threads() -> int:
    """What `set_num_threads` said, or as many as there are processors for this process."""
    if not hasattr(_calling_thread, "count"):
        set_num_threads(_num_processors())
    count: int = _calling_thread.count
    return count


def helpers(*, worth_it: bool) -> tuple[I64, int]:
    """What `together` wants first: the board, and how many may help: none where sharing costs more than it brings."""
    return _crew.board, num_threads() - 1 if worth_it else 0
