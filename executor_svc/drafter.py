"""What a drafter is: it guesses what the target will choose next. A wrong guess costs time, never a token."""

from dataclasses import dataclass
from typing import Protocol

from executor_svc.plan import F32, I32, Batch
from executor_svc.slots import Slots


@dataclass(frozen=True, slots=True)
class Drafts:
    """Proposals for D rows.

    Attributes:
        token_ids: i32 [D, K], the first `counts[d]` of row d count.
        counts: i32 [D].
    """

    token_ids: I32
    counts: I32


class Drafter(Protocol):
    """One per backend. Called from the worker's thread only."""

    @property
    def name(self) -> str:
        """For capabilities, logs and errors."""
        ...

    def observe(self, batch: Batch, hidden: F32) -> None:
        """The target has fed a batch: `hidden` f32 [T or more, hidden], what its final norm gave for each fed token. Valid for the
        call only."""
        ...

    def forget(self) -> None:
        """Another session begins: nothing that the cache holds will be used again."""
        ...

    def propose(self, slots: Slots, rows: I32, *, most: I32) -> Drafts:
        """Guesses at most `most[d]` tokens behind the known ones of slot `rows[d]`, fewer where it has no idea. Changes no slot."""
        ...
