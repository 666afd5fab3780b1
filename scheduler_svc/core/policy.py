"""An admission policy chooses the rows of a step. Policies are named objects; each lives in its own file."""

from dataclasses import dataclass
from typing import Protocol

from scheduler_svc.core.draft import StepDraft
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.types import Advance, Layout, Limits


@dataclass(frozen=True, slots=True)
class Promise:
    """What an executor will take that is not in its books yet: rows, tokens to compute, blocks."""

    rows: int = 0
    tokens: int = 0
    blocks: int = 0


NOTHING = Promise()


class Router(Protocol):
    """Says, for waiting sequences in queue order, on which executor each belongs. One router serves one step."""

    def belongs(self, seq: Sequence, books: ExecutorBooks) -> bool | None:
        """True: here. False: elsewhere, now. None: nowhere yet."""
        ...


class AdmissionPolicy(Protocol):
    """Which sequences share the next forward pass of one executor."""

    @property
    def name(self) -> str:
        """For settings, logs and status."""
        ...

    @property
    def layout(self) -> Layout:
        """Carried by every plan."""
        ...

    @property
    def advance(self) -> Advance:
        """Carried by every plan."""
        ...

    def plans_in_flight(self, limits: Limits) -> int:
        """Most plans sent and not yet answered."""
        ...

    def has_room(self, seq: Sequence, books: ExecutorBooks, promise: Promise = NOTHING) -> bool:
        """Whether `seq` could enter `books` now, beside what is promised to others. Full blocks may get names."""
        ...

    def lookup(self, seq: Sequence, books: ExecutorBooks) -> list[int]:
        """Blocks of `books` that hold the longest cached prefix that `seq` may use. Full blocks may get names."""
        ...

    def choose(self, draft: StepDraft, router: Router) -> None:
        """Fills the draft: decodes, prefill chunks, newcomers. Takes newcomers off the queue."""
        ...
