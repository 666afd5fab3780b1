"""A team: the threads of one kernel call, which go through its phases together and do not sleep in between.

A phase has a number of items. A worker takes items until none is left and then waits until those that others took are done. It
never waits for a worker that has not come, so a team cannot hang, however few threads it is given: one alone does everything.
But nothing may raise while an item is held (memory is allocated before the first one is taken): the others would wait for it.
"""

from typing import Any, Final

import numpy as np

from kernels.cpu.atomics import fetch_add, give_way, load, pause
from kernels.cpu.jit import jit
from kernels.layout import I64

SPINS: Final = 2000
"""Rounds of waiting, some 0.05 ms, after which the processor is offered to somebody else: it may be a member that needs it."""
_LINE: Final = 8
"""int64 in a cache line: counters that are written at once do not share one."""


@jit
def new_team(num_phases: int) -> I64:
    """Counters of a call that has so many phases: items taken and items done, a cache line each."""
    return np.zeros(2 * num_phases * _LINE, np.int64)


@jit
def take(team: I64, phase: int) -> Any:
    """The next item of a phase; each worker gets another one. Behind the last item there is nothing to do."""
    return fetch_add(team, 2 * _LINE * phase, 1)


@jit
def take_rows(team: I64, num_rows: int, at_once: int) -> tuple[int, int]:
    """(first, last + 1) of the next rows of a kernel of one phase; first >= num_rows = none is left."""
    first = take(team, 0) * at_once
    return first, min(first + at_once, num_rows)


@jit
def done_then_take(team: I64, phase: int) -> Any:
    """Reports the item in work as done, with all that was written for it; gives the next one."""
    fetch_add(team, 2 * _LINE * phase + _LINE, 1)
    return take(team, phase)


@jit
def wait(team: I64, phase: int, num_items: int) -> None:
    """Returns once all items of the phase are done."""
    spins = 0
    while load(team, 2 * _LINE * phase + _LINE) < num_items:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            give_way()
