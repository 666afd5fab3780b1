"""The paged policy: everything mixes. Decodes first, then prefill chunks with what is left of the token budget, then newcomers."""

from itertools import islice

import numpy as np

from scheduler_svc.core.draft_room import drafts_that_fit
from scheduler_svc.core.drafting import Drafting
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.policy import Room, Router
from scheduler_svc.core.residency import find_cached, place
from scheduler_svc.core.rows import PrefillRow, RowMap
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.sketch import StepSketch
from scheduler_svc.core.together import choose_together
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

    def choose(self, sketch: StepSketch, router: Router) -> None:
        """See `AdmissionPolicy`."""
        books = sketch.books
        if books.moves_together and books.drafting is not None:
            sketch.advance = Advance.COHORT
            choose_together(sketch, books.drafting)
        elif books.decoding:
            self._choose_decodes(sketch)
        self._choose_prefills(sketch)
        if not sketch.starved and not sketch.books.draining:
            self._admit(sketch, router)

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

    def _is_being_computed(self, sketch: StepSketch, seq: Sequence, *, num_hits: int) -> bool:
        """Whether a row of this very step fills the first block that `seq` misses."""
        most = self._max_hits(seq, sketch.books)
        return num_hits < most and sketch.books.prefix(seq, most).digests[num_hits] in sketch.computing

    def _choose_decodes(self, sketch: StepSketch) -> None:
        books = sketch.books
        rows, cols = books.decode_rows(), books.cols
        if books.drafting is not None and self._choose_drafts(sketch, rows, books.drafting):
            return
        short = cols.short_of_blocks(rows.decode_slots)
        if len(short) <= books.kv.pool.num_available:
            sketch.grow_decodes(rows, short)
        else:
            rows = self._grow_by_preemption(sketch, rows, short)
            if not len(rows):
                return
        cols.plan(rows.decode_slots, step=books.next_step)
        sketch.decodes = rows
        sketch.budget -= len(rows)
        books.decode_room -= 1
        if books.decode_room <= 0:
            books.retire_done(rows, left=cols.limit[rows.decode_slots] - cols.upper[rows.decode_slots])

    def _choose_drafts(self, sketch: StepSketch, rows: RowMap, drafting: Drafting) -> bool:
        """Decode rows with drafts, where any is worth it; False, and nothing changed, where none is."""
        books, cols, slots = sketch.books, sketch.books.cols, rows.decode_slots
        drafts = drafts_that_fit(sketch, rows, drafting, tails=np.ones(len(rows), np.int64))
        if drafts is None:
            return False
        sketch.grow_decodes(rows, (cols.upper[slots] + drafts >= cols.capacity[slots]).nonzero()[0].tolist())
        cols.plan_many(slots, 1 + drafts, step=books.next_step)
        sketch.decodes = rows.drafting(drafts.tolist())
        sketch.budget -= sketch.decodes.num_tokens
        books.decode_room = 0
        books.retire_done(rows, left=cols.limit[slots] - cols.upper[slots])
        return True

    def _grow_by_preemption(self, sketch: StepSketch, rows: RowMap, short: list[int]) -> RowMap:
        """Blocks are short: older rows take them from younger ones. Returns the rows that can run."""
        books, cols = sketch.books, sketch.books.cols
        for seq in [rows.seqs[row] for row in short]:
            if seq.state is State.RUNNING:
                sketch.grow(seq, int(cols.upper[seq.slot]) + 1)
        return RowMap([seq for seq in books.decoding if cols.upper[seq.slot] < cols.capacity[seq.slot]], [])

    def _choose_prefills(self, sketch: StepSketch) -> None:
        for seq in list(sketch.books.prefilling):
            if sketch.budget <= 0:
                return
            if seq.state is State.RUNNING and not self._feed(sketch, seq):
                return

    def _feed(self, sketch: StepSketch, seq: Sequence) -> bool:
        """The next chunk of `seq`; False when blocks are short: nobody younger may take them then."""
        books, cols, slot = sketch.books, sketch.books.cols, seq.slot
        start = cols.upper_of(slot)
        count = min(seq.num_known - start, self._max_chunk, sketch.budget)
        if not sketch.grow(seq, start + count):
            return False
        end = start + count
        is_last = end == seq.num_known
        cols.feed(slot, end=end, step=books.next_step)
        sketch.budget -= count
        sketch.prefills.append(PrefillRow(seq, start, count, is_last))
        if self._caching:
            first, behind = start // books.kv.block_size, end // books.kv.block_size
            sketch.computing.update(books.prefix(seq, behind).digests[first:behind])
        if is_last:
            books.finish_prefill(seq)
        return True

    def _admit(self, sketch: StepSketch, router: Router) -> None:
        """Newcomers in queue order. One that shares a prefix being computed in this very step waits for the next and hits it."""
        books = sketch.books
        num_left = MAX_NEW_TOKENS
        for seq in list_head(sketch):
            if sketch.budget <= 0 or not books.free_slots or books.num_resident >= books.max_rows:
                return
            if sketch.new and len(seq.tokens) > num_left:
                return
            here = router.belongs(seq, books)
            if here is None:
                return
            if not here:
                continue
            hits = self.lookup(seq, books)
            if self._is_being_computed(sketch, seq, num_hits=len(hits)):
                continue
            sketch.queue.remove(seq)
            place(books, seq, hits=hits)
            sketch.new.append(seq)
            num_left -= len(seq.tokens)
            if hits:
                sketch.appended.append((seq, list(hits)))
            self._feed(sketch, seq)


def list_head(sketch: StepSketch) -> list[Sequence]:
    """The waiting sequences that this step may look at, in queue order."""
    return list(islice(sketch.queue, MAX_CONSIDERED))
