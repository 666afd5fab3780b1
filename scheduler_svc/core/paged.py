"""The paged policy: everything mixes. Decodes first, then prefill chunks with what is left of the token budget, then newcomers."""

from itertools import islice

from scheduler_svc.core.draft import StepDraft
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.policy import Room, Router
from scheduler_svc.core.residency import find_cached, place
from scheduler_svc.core.rows import I64, PrefillRow, RowMap
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.types import Advance, Layout, Limits

MAX_CONSIDERED = 64
"""Waiting sequences looked at per step, so that a step's work is bounded."""
MAX_NEW_TOKENS = 2**20
"""Token ids of newcomers in one plan, so that its message is bounded: all ids of a newcomer travel, those in cached blocks too."""


class PagedAdmission:
    """Rows of any length share a step. Within each group older goes first, in key order."""

    name = "paged"
    layout = Layout.PAGED
    advance = Advance.PER_SEQUENCE

    def __init__(self, limits: Limits) -> None:
        self._max_chunk = limits.prefill_chunk or limits.max_num_batched_tokens
        self._caching = limits.enable_prefix_caching

    def plans_in_flight(self, limits: Limits) -> int:
        """As set: a plan needs no token values, so the next can be sent before the last has returned."""
        return limits.plans_in_flight

    def choose(self, draft: StepDraft, router: Router) -> None:
        """See `AdmissionPolicy`."""
        self._choose_decodes(draft)
        self._choose_prefills(draft)
        if not draft.starved and not draft.books.draining:
            self._admit(draft, router)

    def room(self, books: ExecutorBooks) -> Room:
        """See `AdmissionPolicy`. Residents that prefill keep what they need for all their known tokens."""
        kv, prefilling = books.kv, books.prefilling
        rows = 0 if books.draining else min(len(books.free_slots), books.max_rows - books.num_resident)
        reserved = sum(max(0, kv.blocks_for(other.num_known) - len(other.blocks)) for other in prefilling)
        num_ahead = sum(other.num_known - books.cols.upper_of(other.slot) for other in prefilling)
        return Room(books, rows, kv.pool.num_available - reserved, num_ahead, books.num_resident)

    def fits(self, seq: Sequence, room: Room, *, hits: list[int]) -> bool:
        """A slot, and blocks for all known tokens and one more."""
        books = room.books
        if room.rows <= 0 or not books.can_ever_hold(seq):
            return False
        need = books.kv.blocks_for(min(len(seq.tokens) + 1, seq.max_length)) - len(hits)
        return room.blocks - books.kv.pool.count_unheld(hits) >= need

    def lookup(self, seq: Sequence, books: ExecutorBooks) -> list[int]:
        """Blocks of the longest cached prefix; never all tokens, since one must be fed to sample. Takes nothing."""
        most = self._max_hits(seq, books)
        return find_cached(books, seq, most=most) if most else []

    def may_hit(self, seq: Sequence, rooms: list[Room]) -> list[Room]:
        """See `AdmissionPolicy`: whoever knows its first block, or has residents who may."""
        open_rooms = (room for room in rooms if room.rows > 0)
        return [room for room in open_rooms if self._max_hits(seq, room.books) and room.books.may_know_start(seq)]

    def _max_hits(self, seq: Sequence, books: ExecutorBooks) -> int:
        """Most blocks that may be hit."""
        if not self._caching or seq.request.prompt_logprobs:
            return 0
        return (len(seq.tokens) - 1) // books.kv.block_size

    def _is_being_computed(self, draft: StepDraft, seq: Sequence, *, num_hits: int) -> bool:
        """Whether a row of this very step fills the first block that `seq` misses."""
        most = self._max_hits(seq, draft.books)
        return num_hits < most and draft.books.prefix(seq, most).digests[num_hits] in draft.computing

    def _choose_decodes(self, draft: StepDraft) -> None:
        books = draft.books
        if not books.decoding:
            return
        rows, cols = books.decode_rows(), books.cols
        short = cols.short_of_blocks(rows.decode_slots)
        if len(short) <= books.kv.pool.num_available:
            draft.grow_decodes(rows, short)
        else:
            rows = self._grow_by_preemption(draft, rows, short)
        cols.plan(rows.decode_slots, step=books.next_step)
        draft.decodes = rows
        draft.budget -= len(rows)
        books.decode_room -= 1
        if books.decode_room <= 0:
            self._retire(books, rows, left=cols.limit[rows.decode_slots] - cols.upper[rows.decode_slots])

    def _retire(self, books: ExecutorBooks, rows: RowMap, *, left: I64) -> None:
        """Rows with nothing `left` to feed had their last; the next look is due when the first of the others may have had its."""
        if done := (left <= 0).nonzero()[0].tolist():
            books.retire([rows.seqs[row] for row in done])
        elif len(left) == len(books.decoding):  # a row that was left out, short of blocks, may be nearer to its end
            books.decode_room = int(left.min())

    def _grow_by_preemption(self, draft: StepDraft, rows: RowMap, short: list[int]) -> RowMap:
        """Blocks are short: older rows take them from younger ones. Returns the rows that can run."""
        books, cols = draft.books, draft.books.cols
        for seq in [rows.seqs[row] for row in short]:
            if seq.state is State.RUNNING:
                draft.grow(seq, int(cols.upper[seq.slot]) + 1)
        return RowMap([seq for seq in books.decoding if cols.upper[seq.slot] < cols.capacity[seq.slot]], [])

    def _choose_prefills(self, draft: StepDraft) -> None:
        for seq in list(draft.books.prefilling):
            if draft.budget <= 0:
                return
            if seq.state is State.RUNNING and not self._feed(draft, seq):
                return

    def _feed(self, draft: StepDraft, seq: Sequence) -> bool:
        """The next chunk of `seq`; False when blocks are short: nobody younger may take them then."""
        books, cols, slot = draft.books, draft.books.cols, seq.slot
        start = cols.upper_of(slot)
        count = min(seq.num_known - start, self._max_chunk, draft.budget)
        if not draft.grow(seq, start + count):
            return False
        end = start + count
        is_last = end == seq.num_known
        cols.feed(slot, end=end, step=books.next_step)
        draft.budget -= count
        draft.prefills.append(PrefillRow(seq, start, count, is_last))
        if self._caching:
            first, behind = start // books.kv.block_size, end // books.kv.block_size
            draft.computing.update(books.prefix(seq, behind).digests[first:behind])
        if is_last:
            books.finish_prefill(seq)
        return True

    def _admit(self, draft: StepDraft, router: Router) -> None:
        """Newcomers in queue order. One that shares a prefix being computed in this very step waits for the next and hits it."""
        books = draft.books
        num_left = MAX_NEW_TOKENS
        for seq in list_head(draft):
            if draft.budget <= 0 or not books.free_slots or books.num_resident >= books.max_rows:
                return
            if draft.new and len(seq.tokens) > num_left:
                return
            here = router.belongs(seq, books)
            if here is None:
                return
            if not here:
                continue
            hits = self.lookup(seq, books)
            if self._is_being_computed(draft, seq, num_hits=len(hits)):
                continue
            draft.queue.remove(seq)
            place(books, seq, hits=hits)
            draft.new.append(seq)
            num_left -= len(seq.tokens)
            if hits:
                draft.appended.append((seq, list(hits)))
            self._feed(draft, seq)


def list_head(draft: StepDraft) -> list[Sequence]:
    """The waiting sequences that this step may look at, in queue order."""
    return list(islice(draft.queue, MAX_CONSIDERED))
