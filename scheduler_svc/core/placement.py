"""Where a waiting sequence belongs: by prefix affinity weighed against load, then load, then id."""

from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.policy import NOTHING, AdmissionPolicy, Promise
from scheduler_svc.core.sequence import Sequence

TOKENS_PER_RESIDENT = 32
"""What one more resident is worth against prompt tokens to compute: it slows each step by about one token for its whole life."""


class Placement:
    """A `Router` for one step: compares the executors that could take a sequence now.

    It remembers what it has sent elsewhere, so that of a burst each executor gets its share at once. No plan shows that
    it looked.
    """

    def __init__(self, executors: dict[int, ExecutorBooks], policy: AdmissionPolicy) -> None:
        self._executors = executors
        self._policy = policy
        self._promises: dict[int, Promise] = {}

    def belongs(self, seq: Sequence, books: ExecutorBooks) -> bool | None:
        """True: on `books`. False: on another that has room now. None: nobody has room."""
        able = [other for other in self._executors.values() if self._policy.has_room(seq, other, self._promise(other))]
        if not able:
            return None if books.can_ever_hold(seq) else False
        best = able[0] if len(able) == 1 else min(able, key=lambda other: self._cost(seq, other))
        if best is books:
            return True
        promise = self._promise(best)
        blocks = best.kv.blocks_for(len(seq.tokens))
        self._promises[best.executor_id] = Promise(promise.rows + 1, promise.tokens + len(seq.tokens), promise.blocks + blocks)
        return False

    def _promise(self, books: ExecutorBooks) -> Promise:
        return self._promises.get(books.executor_id, NOTHING)

    def _cost(self, seq: Sequence, books: ExecutorBooks) -> tuple[int, int, int]:
        """Tokens to compute before its first one, residents in tokens; then residents; then id."""
        promise = self._promise(books)
        cached = len(self._policy.lookup(seq, books)) * books.kv.block_size
        backlog = sum(other.num_known - books.cols.upper_of(other.slot) for other in books.prefilling)
        rows = books.num_resident + promise.rows
        return (len(seq.tokens) - cached + backlog + promise.tokens + TOKENS_PER_RESIDENT * rows, rows, books.executor_id)
