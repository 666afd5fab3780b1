"""The rows of one plan, kept until its result comes back: results match by row index, never by slot."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.types import Plan, RowKind

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PrefillRow:
    """A chunk of known tokens: `start`, `num_tokens`, and whether it ends the known tokens and samples one."""

    seq: Sequence
    start: int
    num_tokens: int
    is_last: bool


class RowMap:
    """Rows in plan order: decodes first, then prefill chunks. Immutable; steady decode shares one map between plans.

    Attributes:
        seqs, keys, slots: per row.
        decode_slots: i64 [num_decodes]. One array as long as the same rows decode, whatever prefills beside them: `SlotColumns`
            knows them by it.
        num_decodes: leading rows that decode.
        prefills: the rows behind them.
        drafts: drafts of each decode row; None = none has any.
        tails: known tokens that each decode row feeds, where all move by the slowest; None = one each, and each moves by itself.
    """

    __slots__ = ("decode_slots", "drafts", "keys", "num_decodes", "prefills", "seqs", "slots", "tails")

    def __init__(self, decodes: list[Sequence], prefills: list[PrefillRow], *, slots: list[int] | None = None) -> None:
        """`slots` is given only when restored: a sequence that has ended no longer knows its slot."""
        self.seqs = [*decodes, *(row.seq for row in prefills)]
        self.keys = [seq.request.key for seq in self.seqs]
        self.slots = [seq.slot for seq in self.seqs] if slots is None else slots
        self.num_decodes = len(decodes)
        self.decode_slots: I64 = np.array(self.slots[: self.num_decodes], np.int64)
        self.prefills = prefills
        self.drafts: list[int] | None = None
        self.tails: list[int] | None = None

    def drafting(self, drafts: list[int], *, tails: list[int] | None = None) -> "RowMap":
        """The same decode rows, each with so many drafts, and behind so many known tokens."""
        rows = RowMap([], [])
        rows.seqs, rows.keys, rows.slots = self.seqs, self.keys, self.slots
        rows.num_decodes, rows.decode_slots = self.num_decodes, self.decode_slots
        rows.drafts, rows.tails = drafts, tails
        return rows

    def beside(self, prefills: list[PrefillRow]) -> "RowMap":
        """These decode rows and prefill chunks behind them."""
        rows, tail = RowMap([], prefills), self.num_decodes
        rows.seqs = self.seqs[:tail] + rows.seqs
        rows.keys = self.keys[:tail] + rows.keys
        rows.slots = self.slots[:tail] + rows.slots
        rows.num_decodes, rows.decode_slots = self.num_decodes, self.decode_slots
        rows.drafts, rows.tails = self.drafts, self.tails
        return rows

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.seqs)

    @property
    def num_tokens(self) -> int:
        """Tokens fed, if each draft is made."""
        known = self.num_decodes if self.tails is None else sum(self.tails)
        return known + sum(self.drafts or ()) + sum(row.num_tokens for row in self.prefills)

    def decode_tokens(self) -> list[int]:
        """Tokens fed by each decode row, if each draft is made."""
        tails, drafts = self.tails or [1] * self.num_decodes, self.drafts
        return tails if drafts is None else [tail + count for tail, count in zip(tails, drafts, strict=True)]

    def drafts_of(self, row: int) -> int:
        """Drafts of one row."""
        return self.drafts[row] if self.drafts is not None and row < self.num_decodes else 0

    def tail_of(self, row: int) -> int:
        """Known tokens that a decode row feeds."""
        return 1 if self.tails is None else self.tails[row]

    def kinds(self) -> list[int]:
        """The plan's `row_kinds` column."""
        tail = [int(RowKind.PREFILL_LAST if row.is_last else RowKind.PREFILL) for row in self.prefills]
        return [int(RowKind.DECODE)] * self.num_decodes + tail


@dataclass(slots=True)
class PlanInFlight:
    """A plan that was sent and has not returned.

    Attributes:
        plan: as sent.
        rows: its rows, also when the plan itself says "repeat".
    """

    plan: Plan
    rows: RowMap
