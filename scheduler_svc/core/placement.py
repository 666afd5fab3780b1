"""Where a waiting sequence belongs: by prefix affinity weighed against load, then load, then id."""

from bisect import insort

from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.policy import AdmissionPolicy, Room
from scheduler_svc.core.sequence import Sequence

TOKENS_PER_RESIDENT = 32
"""What one more resident is worth against prompt tokens to compute: it slows each step by about one token for its whole life."""


class Placement:
    """A `Router` for one step: compares the executors that could take a sequence now.

    It remembers what it has sent elsewhere, so that of a burst each executor gets its share at once. No plan shows that
    it looked. Executors where nothing of a sequence is cached stand in the same order for all sequences, so of those only
    the first with room is looked at: a step's work hardly grows with the fleet.
    """

    def __init__(self, executors: dict[int, ExecutorBooks], policy: AdmissionPolicy) -> None:
        self._executors = executors
        self._policy = policy
        self._rooms: list[Room] = []
        self._stale: Room | None = None

    def belongs(self, seq: Sequence, books: ExecutorBooks) -> bool | None:
        """True: on `books`. False: on another that has room now. None: nobody has room."""
        self._look(books)
        best = self._best(seq)
        if best is None:
            return None if books.can_ever_hold(seq) else False
        if best.books is books:
            self._stale = best
            return True
        self._rooms.remove(best)
        best.promise(num_tokens=len(seq.tokens), num_blocks=best.books.kv.blocks_for(len(seq.tokens)))
        insort(self._rooms, best, key=_order)
        return False

    def _look(self, books: ExecutorBooks) -> None:
        """Keeps all rooms, least load first. The step changes its own executor's books when a sequence was said to belong there."""
        if not self._rooms:
            self._rooms = sorted(map(self._policy.room, self._executors.values()), key=_order)
        elif self._stale is not None:
            self._rooms.remove(self._stale)
            insort(self._rooms, self._policy.room(books), key=_order)
        self._stale = None

    def _best(self, seq: Sequence) -> Room | None:
        fits, lookup = self._policy.fits, self._policy.lookup
        knowing = {room: lookup(seq, room.books) for room in self._policy.may_hit(seq, self._rooms)}
        able = [(room, hits) for room, hits in knowing.items() if fits(seq, room, hits=hits)]
        stranger = next((room for room in self._rooms if room not in knowing and fits(seq, room, hits=[])), None)
        if stranger is not None:
            able.append((stranger, []))
        return min(able, key=_cost)[0] if able else None


def _order(room: Room) -> tuple[int, int, int]:
    """Tokens to compute before a newcomer's, residents in tokens; then residents; then id."""
    return (room.num_ahead + TOKENS_PER_RESIDENT * room.num_resident, room.num_resident, room.books.executor_id)


def _cost(placed: tuple[Room, list[int]]) -> tuple[int, int, int]:
    """`_order` with the tokens that need not be computed there."""
    room, hits = placed
    load, rows, executor_id = _order(room)
    return (load - len(hits) * room.books.kv.block_size, rows, executor_id)
