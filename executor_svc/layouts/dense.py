"""Layouts A (aligned) and B (stripped): each sequence's own cache, the cohort that holds them for now, and the way in and out.

In: own caches are joined into a cohort. Out, after every forward: each row has its own cache again. In A that is a promise, not a
copy: the row is *lent*, it lies in the cohort behind its dead prefix, which is dropped at the next In only. In B the prefix is
dropped at once and the cohort is taken apart, unless no row had one.

Owned by the worker thread. A failed step leaves own caches as they were; its rows end.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from executor_svc.layouts.access import DenseAccess
from executor_svc.layouts.align import I32, drop_dead_prefix
from executor_svc.layouts.blocks import keep_blocks, read_blocks
from executor_svc.layouts.cohort import GROWTH, Cohort, KvShape
from executor_svc.layouts.normal import NormalSlot
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.slot_kinds import KvSlot
from executor_svc.model.cache import KvCache
from executor_svc.plan import ALIGNED, CACHE_IN, CACHE_NOTHING, CACHE_RESET, STRIPPED, Batch, CopyCounts


@dataclass(frozen=True, slots=True)
class Lent:
    """A sequence's cache that lies in a cohort, behind the dead prefix that the cohort says."""

    cohort: Cohort
    member: int

    def take(self) -> list[KvSlot]:
        """The cache without its dead prefix. Raises CacheRefused for a slot that has one and cannot drop it."""
        slots, lead = self.cohort.own(self.member), int(self.cohort.lead[self.member])
        for slot in slots:
            drop_dead_prefix(slot, lead)
        return slots


class DenseCaches:
    """See the module; `KvLayout` of the dense layouts.

    Attributes:
        granted: whether rows of different lengths were admitted; without, they must not meet.
        copies: of the last step. lead_pad: i32 [R], of the last step's In; empty otherwise.
        cohort: what the pipeline holds now, or None.
    """

    def __init__(self, shape: KvShape, *, make_slots: Callable[[], list[KvSlot]], blocks: KvCache | None = None) -> None:
        self.granted = False
        self.copies = CopyCounts()
        self.lead_pad: I32 = np.zeros(0, np.int32)
        self.cohort: Cohort | None = None
        self._shape = shape
        self._make_slots = make_slots
        self._blocks = blocks
        self._own: dict[int, Lent | list[KvSlot]] = {}

    def begin(self, batch: Batch) -> DenseAccess:
        """See `KvLayout`: does the batch's cache operation. Raises CacheRefused with the own caches unchanged."""
        self.copies, self.lead_pad = CopyCounts(), np.zeros(0, np.int32)
        self.forget(batch.left_slots.tolist())
        fed = _tokens_per_row(batch)
        cohort = self._cohort_of(batch, fed)
        rows = _rows_in(cohort, batch)
        self._check_absent(cohort, rows)
        _check_lengths(cohort, rows, batch)
        before = cohort.num_copies
        cohort.reserve(fed)
        self.copies.cache_in += cohort.num_copies - before
        self.cohort = cohort
        return DenseAccess(cohort, rows, batch=batch, fed=fed)

    @contextmanager
    def step(self, batch: Batch) -> Iterator[None]:
        """Around the forward of a batch: Out behind it, and no cohort left standing if it failed half way."""
        try:
            yield
            self.end(batch)
        except BaseException:
            self.drop_cohort()
            raise

    def tidy(self, batch: Batch) -> None:
        """What a batch without rows asks for."""
        self.copies, self.lead_pad = CopyCounts(), np.zeros(0, np.int32)
        self.forget(batch.left_slots.tolist())
        if batch.cache_op == CACHE_RESET:
            self.drop_cohort()

    def end(self, batch: Batch, *, committed: I32 | None = None) -> None:
        """Out. `committed`: tokens that each row keeps of those it fed, i32 [R]; None = all.

        Raises CacheRefused when rows that keep different numbers share a width (ALIGNED), which would then be nobody's length.
        """
        cohort, fed = self._standing(), _tokens_per_row(batch)
        kept = np.full(len(batch.slots), fed, np.int32) if committed is None else committed
        if batch.layout == ALIGNED and len(kept) and kept.min() != kept.max():
            raise CacheRefused(f"LAYOUT_ALIGNED moves its rows alike; they kept {int(kept.min())} to {int(kept.max())} tokens")
        rows = _rows_in(cohort, batch)
        own = cohort.own_lengths()[rows] + kept
        dropped = fed - kept
        if batch.layout == ALIGNED:
            cohort.width += int(kept[0])
            cohort.roll_back(rows, dropped)
        else:
            cohort.width += fed
        self._own.update((slot, Lent(cohort, row)) for slot, row in zip(batch.slots.tolist(), rows.tolist(), strict=True))
        if self._blocks is not None:
            keep_blocks(self._blocks, cohort=cohort, rows=rows, own=own, batch=batch)
        if batch.layout == STRIPPED and (cohort.lead.any() or dropped.any()):
            self._strip(batch.slots, dropped)

    def _strip(self, slots: I32, dropped: I32) -> None:
        """Takes the cohort apart: each row's own columns and own length, less the tokens that it did not keep, i32 [R]."""
        taken = {slot: entry.take() for slot in slots.tolist() if isinstance(entry := self._own[slot], Lent)}
        for slot, count in zip(slots.tolist(), dropped.tolist(), strict=True):
            for part in taken[slot]:
                part.set_len(part.length - count)
        self._own.update(taken)
        self.cohort = None

    def length(self, slot: int) -> int:
        """The sequence's own length, read off its cache; 0 when it has none."""
        entry = self._own.get(slot)
        if entry is None:
            return 0
        if isinstance(entry, Lent):
            return int(entry.cohort.width - entry.cohort.lead[entry.member])
        return entry[0].length

    def forget(self, slots: Iterable[int]) -> None:
        """Sequences have left; their caches go when no cohort holds them any more."""
        for slot in slots:
            self._own.pop(slot, None)

    def drop_cohort(self) -> None:
        """RESET, and what follows a failed step: the batched cache goes and its leads with it; rows keep their own caches."""
        self.cohort = None
        self.lead_pad = np.zeros(0, np.int32)

    def reset(self) -> None:
        """A new session."""
        self.drop_cohort()
        self._own.clear()

    def close(self) -> None:
        """Lets go of everything, the blocks too. Idempotent."""
        self.reset()
        self._blocks = None

    def _cohort_of(self, batch: Batch, fed: int) -> Cohort:
        if batch.cache_op == CACHE_NOTHING:
            return self._standing()
        if batch.cache_op == CACHE_IN:
            return self._join(batch, fed)
        if batch.cache_op != CACHE_RESET:
            raise CacheRefused(f"cache_op {batch.cache_op} is not known")
        starts = _starts(batch)
        if starts.any():
            row = int(np.flatnonzero(starts)[0])
            raise CacheRefused(
                f"CACHE_OP_RESET starts an empty cohort; slot {int(batch.slots[row])} already holds {int(starts[row])} tokens"
            )
        self.drop_cohort()
        rows = [self._make_slots() for _ in batch.slots]
        return Cohort.join(rows, members=batch.slots, room=fed, granted=True, shape=self._shape)

    def _join(self, batch: Batch, fed: int) -> Cohort:
        """Deferred strips, then the copies. The cohort that stood until now lives on in rows that are still lent to it."""
        if batch.layout == ALIGNED and self.cohort is not None and np.array_equal(self.cohort.members, batch.slots):
            self.copies.needless_in = 1
        rows = [self._take(int(slot), batch=batch, row=row) for row, slot in enumerate(batch.slots)]
        spare = GROWTH if batch.layout == ALIGNED else 0
        cohort = Cohort.join(rows, members=batch.slots, room=fed, spare=spare, granted=self.granted, shape=self._shape)
        self.copies.cache_in = cohort.num_copies
        self.lead_pad = cohort.lead
        return cohort

    def _take(self, slot: int, *, batch: Batch, row: int) -> list[KvSlot]:
        entry, start = self._own.get(slot), int(batch.positions[batch.query_start[row]])
        if isinstance(entry, Lent):
            return entry.take()
        if entry is None and start and self._blocks is not None:
            return read_blocks(self._blocks, table=batch.block_tables[row], length=start, empty=self._make_slots())
        return self._make_slots() if entry is None else entry

    def _check_absent(self, cohort: Cohort, rows: I32) -> None:
        """A member that misses a step ends one column short of the others, and nobody could tell later."""
        if len(rows) == len(cohort.members):
            return
        for member in np.setdiff1d(np.arange(len(cohort.members)), rows).tolist():
            entry = self._own.get(slot := int(cohort.members[member]))
            if isinstance(entry, Lent) and entry.cohort is cohort:
                raise CacheRefused(f"slot {slot} of the cohort has not ended and misses this step; a change needs CACHE_OP_IN")

    def _standing(self) -> Cohort:
        if self.cohort is None:
            raise CacheRefused("CACHE_OP_NOTHING, but no cohort stands: it was never assembled, was reset, or was stripped apart")
        return self.cohort


def normal_slots(num_layers: int) -> Callable[[], list[KvSlot]]:
    """Makes the cache of a sequence that holds nothing yet: normal slots in every layer."""
    return lambda: [NormalSlot() for _ in range(num_layers)]


def _tokens_per_row(batch: Batch) -> int:
    fed = np.diff(batch.query_start)
    if len(fed) and fed.min() != fed.max():
        raise CacheRefused(f"rows of a dense layout feed one number of tokens; these feed {int(fed.min())} to {int(fed.max())}")
    return int(fed[0]) if len(fed) else 0


def _starts(batch: Batch) -> I32:
    starts: I32 = batch.positions[batch.query_start[:-1]]
    return starts


def _rows_in(cohort: Cohort, batch: Batch) -> I32:
    """Where each row of the batch lies in the cohort. Rows may be missing (they ended), never added or moved."""
    if np.array_equal(cohort.members, batch.slots):
        return np.arange(len(batch.slots), dtype=np.int32)
    place = {slot: row for row, slot in enumerate(cohort.members.tolist())}
    rows = np.array([place.get(slot, -1) for slot in batch.slots.tolist()], np.int32)
    if (rows < 0).any() or (np.diff(rows) <= 0).any():
        raise CacheRefused("CACHE_OP_NOTHING, but the rows are not those of the cohort in their order; a change needs CACHE_OP_IN")
    return rows


def _check_lengths(cohort: Cohort, rows: I32, batch: Batch) -> None:
    """The cache's own length is the only record; a plan that disagrees with it would read or write another token's place."""
    own, starts = cohort.own_lengths()[rows], _starts(batch)
    if (own != starts).any():
        row = int(np.flatnonzero(own != starts)[0])
        held, start = int(own[row]), int(starts[row])
        raise CacheRefused(f"the cache of slot {int(batch.slots[row])} holds {held} tokens, its row starts at {start}")
