"""Decode rows whose membership stays: "same cohort, advance". What changes is a count of steps, and a calendar names the rows that
have an event in each of them, so that a step's work grows with its events, not with its rows.

A run stands for values that `SlotColumns` would otherwise write in every step; it ends, and they are written, when somebody asks.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


class PlanRun:
    """Plans that repeat the same decode rows.

    Attributes:
        slots: i64 [R], whose they are; the same object means the same rows.
        num_steps: planned since it began. last_step: the last one's id.
        member: bool [num_slots], which slots these are.
    """

    def __init__(self, slots: I64, *, room: I64, num_slots: int) -> None:
        """`room`: i64 [R], tokens for which each row has blocks."""
        self.slots = slots
        self.member = _members(slots, num_slots)
        self.num_steps = 0
        self.last_step = 0
        self._short = _calendar(room)

    def take_short(self) -> list[int]:
        """Rows that need a block for the next step, rising. They must `grow`, or the run must end."""
        return self._short.pop(self.num_steps, [])

    def grow(self, rows: list[int], *, num_tokens: int) -> None:
        """Short rows got a block of `num_tokens`."""
        due = self._short[self.num_steps + num_tokens]
        due += rows
        if len(due) > len(rows):
            due.sort()

    def advance(self, step: int) -> None:
        """One more plan."""
        self.num_steps += 1
        self.last_step = step


class ResultRun:
    """Results in which each of the same rows fed one token and emitted one.

    Attributes:
        slots: i64 [R], whose they are.
        num_results: applied since it began.
        expected: i64 [R], lengths that the next result must report.
        member: bool [num_slots], which slots these are.
    """

    def __init__(self, slots: I64, *, lengths: I64, limits: I64, window: int, num_slots: int) -> None:
        """`lengths`: i64 [R], as of the last result; `limits`: most that each may reach; `window`: see `SlotColumns`."""
        self.slots = slots
        self.num_results = 0
        self.expected = lengths + 1
        self.member = _members(slots, num_slots)
        self._room = int((limits - lengths).min())
        self._window = window
        self._full = _calendar(-lengths % window)
        self._cells = slots * window + lengths % window

    @property
    def may_end(self) -> bool:
        """Whether a row may reach its limit with the next result."""
        return self.num_results + 1 >= self._room

    def full(self) -> list[int]:
        """Rows whose window is full as the next result comes, rising."""
        return self._full.get((self.num_results + 1) % self._window, [])

    def advance(self) -> I64:
        """One more result. Returns where its tokens go: i64 [R], indices into the flattened windows, until the next call."""
        full = self.full()
        self._cells += 1
        if full:
            self._cells[full] -= self._window
        self.expected += 1
        self.num_results += 1
        return self._cells


def _members(slots: I64, num_slots: int) -> NDArray[np.bool_]:
    member = np.zeros(num_slots, np.bool_)
    member[slots] = True
    return member


def _calendar(steps: I64) -> defaultdict[int, list[int]]:
    """step -> rows, rising."""
    calendar: defaultdict[int, list[int]] = defaultdict(list)
    for row, step in enumerate(steps.tolist()):
        calendar[step].append(row)
    return calendar
