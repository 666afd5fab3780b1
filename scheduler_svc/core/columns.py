"""One executor's slots as columns: a steady step touches them all at once, or not at all, and no sequence by itself."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler_svc.core.runs import PlanRun, ResultRun

I64 = NDArray[np.int64]
WINDOW_BLOCKS: Final = 16
"""Blocks of tokens that a decoding slot gathers before its sequence is touched."""


class SlotColumns:
    """Lengths per slot, in tokens, i64 [num_slots]. Values outlive a sequence until its slot is used again.

    Columns that steady decode advances are properties: who reads or writes one ends the run (see `runs`) that stands for it. Two
    steps with the same rows and nobody between them begin one.

    Attributes:
        upper: most that its cache may hold once every plan in flight has run.
        confirmed: what its cache holds by the last result.
        capacity: what its blocks can hold; never below `upper`.
        limit: most that its cache may ever hold; no row is scheduled past it.
        last_step: last plan that has a row of it.
        window: WINDOW_BLOCKS blocks, in tokens.
        recent: u32 [num_slots, window]. The token at position p lies at p % window until its window is full, or until somebody
            asks the sequence for its tokens.
    """

    def __init__(self, num_slots: int, *, block_size: int) -> None:
        self.capacity: I64 = np.zeros(num_slots, np.int64)
        self.limit = np.zeros_like(self.capacity)
        self.window = WINDOW_BLOCKS * block_size
        self.recent: NDArray[np.uint32] = np.zeros((num_slots, self.window), np.uint32)
        self._upper = np.zeros_like(self.capacity)
        self._last_step = np.zeros_like(self.capacity)
        self._confirmed = np.zeros_like(self.capacity)
        # tokens known as of a slot's last decode that was applied as a column; 0 = none was
        self._num_tokens = np.zeros_like(self.capacity)
        self._cells = self.recent.reshape(-1)
        self._block_size = block_size
        self._plans: PlanRun | None = None
        self._results: ResultRun | None = None
        self._planned: I64 | None = None
        self._returned: I64 | None = None

    @property
    def upper(self) -> I64:
        """See the class."""
        self._end_plans()
        return self._upper

    @property
    def last_step(self) -> I64:
        """See the class."""
        self._end_plans()
        return self._last_step

    @property
    def confirmed(self) -> I64:
        """See the class."""
        self._end_results()
        return self._confirmed

    # One slot, written; a run of others goes on.

    def enter(self, slot: int, *, length: int, capacity: int, limit: int) -> None:
        """A sequence takes the slot, with `length` tokens in cached blocks."""
        self.feed(slot, end=length, step=0)
        self.confirm(slot, length=length)
        self.capacity[slot], self.limit[slot], self._num_tokens[slot] = capacity, limit, 0

    def feed(self, slot: int, *, end: int, step: int) -> None:
        """A plan feeds its tokens below `end`."""
        if self._plans is not None and self._plans.member[slot]:
            self._end_plans()
        self._upper[slot], self._last_step[slot] = end, step

    def confirm(self, slot: int, *, length: int) -> None:
        """By a result its cache holds `length`."""
        if self._results is not None and self._results.member[slot]:
            self._end_results()
        self._confirmed[slot] = length

    # Planning. `slots` are the `decode_slots` of a RowMap, i64 [R].

    def short_of_blocks(self, slots: I64) -> list[int]:
        """Rows that need a block for one more token, rising. The caller gives each one by `grow`, or looks at `upper` itself."""
        run = self._plan_run(slots)
        return (self._upper[slots] >= self.capacity[slots]).nonzero()[0].tolist() if run is None else run.take_short()

    def grow(self, slots: I64, rows: list[int]) -> None:
        """Each of `rows` got a block."""
        self.capacity[slots[rows]] += self._block_size
        if (run := self._plan_run(slots)) is not None:
            run.grow(rows, num_tokens=self._block_size)

    def plan(self, slots: I64, *, step: int) -> None:
        """A plan feeds each row one token."""
        run = self._plan_run(slots)
        if run is not None:
            run.advance(step)
            return
        self._upper[slots] += 1
        self._last_step[slots] = step
        if slots is self._planned:
            self._plans = PlanRun(slots, room=self.capacity[slots] - self._upper[slots], num_slots=len(self.limit))
        self._planned = slots

    def plan_many(self, slots: I64, num_tokens: I64, *, step: int) -> None:
        """A plan feeds each row so many tokens."""
        self._end_plans()
        self._upper[slots] += num_tokens
        self._last_step[slots] = step

    def retract(self, slot: int, num_tokens: int) -> None:
        """So many tokens that a plan was to feed are not kept: drafts that were wrong, or never made, or what is fed again."""
        self._end_plans()
        self._upper[slot] -= num_tokens

    # Applying results in which each row fed one token and emitted one.

    def expected(self, slots: I64) -> I64:
        """Lengths that the next such result must report, i64 [R]. Not to be changed."""
        run = self._result_run(slots)
        return self._confirmed[slots] + 1 if run is None else run.expected

    def at_limit(self, slots: I64, *, lengths: I64) -> list[int]:
        """Rows that reach their limit with these lengths, the expected ones."""
        run = self._result_run(slots)
        return (lengths >= self.limit[slots]).nonzero()[0].tolist() if run is None or run.may_end else []

    def full_windows(self, slots: I64, *, lengths: I64) -> list[int]:
        """Rows whose window is full at these lengths; what is in it must be taken before `decoded`."""
        run = self._result_run(slots)
        return (lengths % self.window == 0).nonzero()[0].tolist() if run is None else run.full()

    def decoded(self, slots: I64, *, lengths: I64, token_ids: Sequence[int]) -> None:
        """The result counts: caches hold `lengths`, the expected ones, and each row has one token more."""
        run = self._result_run(slots)
        cells = slots * self.window + lengths % self.window if run is None else run.advance()
        self._cells[cells] = np.asarray(token_ids, np.uint32)
        if run is None:
            self._confirmed[slots] = lengths
            self._num_tokens[slots] = lengths + 1
            if slots is self._returned:
                limits, num_slots = self.limit[slots], len(self.limit)
                self._results = ResultRun(slots, lengths=lengths, limits=limits, window=self.window, num_slots=num_slots)
            self._returned = slots

    def tokens_after(self, slot: int, num_tokens: int) -> bytes:
        """Tokens of the slot's sequence behind the first `num_tokens` that only `recent` has, 4 bytes each: at most one window."""
        end = int(self._num_tokens[slot]) + self._num_deferred(slot)
        return self.recent[slot].take(np.arange(num_tokens, end), mode="wrap").tobytes() if end > num_tokens else b""

    # Read without ending a run.

    def copies(self) -> dict[str, I64]:
        """The columns that a restored core needs, by name; the caller's own."""
        names = ("upper", "confirmed", "last_step")
        columns = {"capacity": self.capacity.copy(), "limit": self.limit.copy()}
        columns |= {name: getattr(self, f"_{name}").copy() for name in names}
        if self._plans is not None and self._plans.num_steps:
            columns["upper"][self._plans.slots] += self._plans.num_steps
            columns["last_step"][self._plans.slots] = self._plans.last_step
        if self._results is not None:
            columns["confirmed"][self._results.slots] += self._results.num_results
        return columns

    def confirmed_of(self, slot: int) -> int:
        """`confirmed[slot]`."""
        return int(self._confirmed[slot]) + self._num_deferred(slot)

    def upper_of(self, slot: int) -> int:
        """`upper[slot]`."""
        run = self._plans
        return int(self._upper[slot]) + (run.num_steps if run is not None and run.member[slot] else 0)

    def last_step_of(self, slot: int) -> int:
        """`last_step[slot]`."""
        run = self._plans
        return run.last_step if run is not None and run.num_steps and run.member[slot] else int(self._last_step[slot])

    def _num_deferred(self, slot: int) -> int:
        run = self._results
        return run.num_results if run is not None and run.member[slot] else 0

    def _plan_run(self, slots: I64) -> PlanRun | None:
        """The run if it is about these rows; that of others ends."""
        if self._plans is not None and self._plans.slots is not slots:
            self._end_plans()
        return self._plans

    def _result_run(self, slots: I64) -> ResultRun | None:
        if self._results is not None and self._results.slots is not slots:
            self._end_results()
        return self._results

    def _end_plans(self) -> None:
        run, self._plans, self._planned = self._plans, None, None
        if run is not None and run.num_steps:
            self._upper[run.slots] += run.num_steps
            self._last_step[run.slots] = run.last_step

    def _end_results(self) -> None:
        run, self._results, self._returned = self._results, None, None
        if run is not None:
            self._confirmed[run.slots] = run.expected - 1
            self._num_tokens[run.slots] = run.expected
