"""A step being put together: which rows, which blocks, what was preempted for it."""

from dataclasses import dataclass, field

from scheduler_svc.core.errors import InvariantViolation
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.queue import WaitingQueue
from scheduler_svc.core.residency import preempt, undo_preempt
from scheduler_svc.core.rows import PrefillRow, RowMap
from scheduler_svc.core.sequence import Sequence, State, by_key
from scheduler_svc.core.types import Advance, CacheOp, Layout


@dataclass(slots=True)
class StepSketch:
    """What a policy fills. Rows enter the books (upper length, last step) as they are chosen.

    Attributes:
        books, queue: where it draws from.
        budget: tokens left.
        decodes: decode rows, or None.
        prefills: prefill rows, in order.
        new: sequences that enter with this step.
        decode_blocks: decode row indices, and the one block given to each.
        appended: blocks given to other rows, in order.
        computing: digests of the blocks that prefill rows of this step fill.
        starved: somebody waits for blocks: nobody new is admitted.
        cache_op, layout, advance: for the plan; None = the policy's own.
        num_offered, num_buckets, num_chosen: sequences that could run, the buckets that they formed, and the size of the one that
            was chosen; 0 where the policy forms none.
        preempted: sequences taken out for it. marked: of those, the ones that wait for their last result, and whether they decoded.
    """

    books: ExecutorBooks
    queue: WaitingQueue
    budget: int
    decodes: RowMap | None = None
    prefills: list[PrefillRow] = field(default_factory=list)
    new: list[Sequence] = field(default_factory=list)
    decode_blocks: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    appended: list[tuple[Sequence, list[int]]] = field(default_factory=list)
    computing: set[bytes] = field(default_factory=set)
    starved: bool = False
    cache_op: CacheOp = CacheOp.NOTHING
    layout: Layout | None = None
    advance: Advance | None = None
    num_offered: int = 0
    num_buckets: int = 0
    num_chosen: int = 0
    preempted: list[Sequence] = field(default_factory=list)
    marked: list[tuple[Sequence, bool]] = field(default_factory=list)

    @property
    def has_rows(self) -> bool:
        """Whether anything runs."""
        return bool(self.prefills) or (self.decodes is not None and len(self.decodes) > 0)

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Makes the blocks of `seq` cover `num_tokens`, preempting the last in the total order as needed; False = not in this step.

        The victim may be `seq` itself. The oldest is a victim only when it is alone, and alone it always fits.
        """
        books = self.books
        need = books.kv.blocks_for(num_tokens) - len(seq.blocks)
        if need <= 0:
            return True
        while books.kv.pool.num_available < need:
            self.starved = True
            if books.kv.pool.num_available + self._num_returning() >= need:
                return False
            victim = self._last_in_order()
            self._preempt(victim)
            if victim is seq:
                return False
        self.appended.append((seq, books.append_blocks(seq, need)))
        return True

    def grow_decodes(self, rows: RowMap, short: list[int]) -> None:
        """One more block for each decode row of `short`; the caller checked that they exist."""
        if short:
            books = self.books
            self.decode_blocks = (short, books.kv.allocate(len(short)))
            for row, block in zip(*self.decode_blocks, strict=True):
                rows.seqs[row].blocks.append(block)
            books.cols.grow(rows.decode_slots, short)

    def undo(self) -> None:
        """Nothing is sent: sequences that only wait for their last result run on, as if this step had not been tried."""
        for seq, decoding in reversed(self.marked):
            undo_preempt(self.books, seq, decoding=decoding)

    def _last_in_order(self) -> Sequence:
        lasts = [group[-1] for group in (self.books.decoding, self.books.prefilling) if group]
        if not lasts:
            raise InvariantViolation("blocks are short although nobody is left to preempt")
        return max(lasts, key=by_key)

    def _preempt(self, victim: Sequence) -> None:
        decoding = victim in self.books.decoding
        preempt(self.books, victim, self.queue)
        self.preempted.append(victim)
        if victim.state is State.PREEMPTING:
            self.marked.append((victim, decoding))

    def _num_returning(self) -> int:
        """Blocks that come back with results of plans in flight."""
        refs = self.books.kv.pool.refs
        ending = (*self.books.leaving.values(), *self.books.retired.values())
        return sum(1 for seq in ending for block in seq.blocks if refs[block] == 1)
