"""Where a waiting sequence belongs: by prefix affinity weighed against load, then load, then id."""

from collections.abc import Iterable

from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.policy import AdmissionPolicy
from scheduler_svc.core.sequence import Sequence

TOKENS_PER_RESIDENT = 32
"""What one more resident is worth against prompt tokens to compute: it slows each step by about one token for its whole life."""


class Placement:
    """Compares the executors that could take a sequence now. Changes nothing."""

    def __init__(self, executors: dict[int, ExecutorBooks], policy: AdmissionPolicy) -> None:
        self._executors = executors
        self._policy = policy

    def belongs(self, seq: Sequence, books: ExecutorBooks) -> bool | None:
        """True: on `books`. False: on another that has room now. None: nobody has room."""
        able = [other for other in self._executors.values() if self._policy.has_room(seq, other)]
        if not able:
            return None if books.can_ever_hold(seq) else False
        if len(able) == 1:
            return able[0] is books
        return min(able, key=lambda other: self._cost(seq, other)) is books

    def _cost(self, seq: Sequence, books: ExecutorBooks) -> tuple[int, int, int]:
        """Tokens to compute before its first one, residents in tokens; then residents; then id."""
        cached = len(self._policy.lookup(seq, books)) * books.kv.block_size
        return (len(seq.tokens) - cached + load(books.prefilling, books), books.num_resident, books.executor_id)


def load(prefilling: Iterable[Sequence], books: ExecutorBooks) -> int:
    """Tokens that stand in front of a newcomer."""
    backlog = sum(seq.num_known - int(books.cols.upper[seq.slot]) for seq in prefilling)
    return backlog + TOKENS_PER_RESIDENT * books.num_resident
