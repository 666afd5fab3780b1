"""All of the core's state in one place, so that snapshots, statistics and invariants read it without knowing the scheduler."""

from collections.abc import Callable

from scheduler_svc.core.counters import Counters
from scheduler_svc.core.deadlines import Deadlines
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.policy import AdmissionPolicy
from scheduler_svc.core.queue import WaitingQueue
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.types import Limits


class CoreState:
    """What the core remembers.

    Attributes:
        limits, policy: constant after construction. fingerprint: index key of a prefix digest; identity but in tests.
        sequences: every sequence that has not ended, by key.
        queue: those that wait for a slot.
        executors: books by executor id, in order of joining.
        deadlines: of living sequences.
        counters: what has happened so far.
        fit_changed: executors came or went since waiting sequences were last held against them.
    """

    def __init__(self, limits: Limits, *, policy: AdmissionPolicy, fingerprint: Callable[[bytes], bytes]) -> None:
        self.limits = limits
        self.policy = policy
        self.fingerprint = fingerprint
        self.sequences: dict[int, Sequence] = {}
        self.queue = WaitingQueue()
        self.executors: dict[int, ExecutorBooks] = {}
        self.deadlines = Deadlines()
        self.counters = Counters()
        self.fit_changed = False

    def plans_in_flight(self, books: ExecutorBooks) -> int:
        """Most plans that may be in flight to an executor."""
        return 1 if books.moves_together else self.policy.plans_in_flight(self.limits)
