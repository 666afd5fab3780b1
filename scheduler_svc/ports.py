"""What the engine needs from outside: a clock and a recorder. Everything here is a Protocol plus its plainest implementation."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Time as the engine sees it."""

    def now_ns(self) -> int:
        """Nanoseconds that never go back. Deadlines, arrivals and step accounts are on this clock."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        """See `Clock`."""
        return time.monotonic_ns()


class Recorder(Protocol):
    """Takes every input of the core in the order it is consumed, before it is applied, and every plan after it was made.

    Calls never block for long, never raise because a disk is full, and keep no reference to mutable arguments. `wire` is the exact
    bytes of the message. A TICK is `core.tick(now_ns)`, then `core.schedule(executor_id)`; a PLAN follows iff a plan came out.
    `executor_id` 0 in a TICK means that time passed and nothing was scheduled.
    """

    def handshake(self, executor_id: int, address: str, wire: bytes) -> None:
        """An executor joins; `wire` is its GetCapabilitiesResponse."""
        ...

    def arrival(self, first_key: int, arrival_ns: int, default_timeout_ms: int, wire: bytes) -> None:
        """Sequences `first_key`, `first_key + 1`, ... arrive; `wire` is the Submit with its seeds filled in."""
        ...

    def abort(self, keys: Sequence[int]) -> None:
        """Sequences are withdrawn."""
        ...

    def tick(self, executor_id: int, now_ns: int) -> None:
        """Time passes, then a plan is asked for."""
        ...

    def result(self, executor_id: int, wire: bytes) -> None:
        """A StepResult is applied."""
        ...

    def drain(self, executor_id: int) -> None:
        """Nothing new goes to this executor."""
        ...

    def lost(self, executor_id: int, reason: str) -> None:
        """An executor leaves; its rows move."""
        ...

    def plan(self, executor_id: int, wire: bytes) -> None:
        """A StepPlan came out of the last TICK."""
        ...

    def dump(self, reason: str) -> Path | None:
        """Writes the ring of the last steps to a file and returns it; None if that is impossible or already done for this fault."""
        ...

    def close(self) -> None:
        """Finishes the recording. Idempotent."""
        ...
