"""An admission policy chooses the rows of a step. Policies are named objects; each lives in its own file."""

from dataclasses import dataclass
from typing import Protocol

from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.sketch import StepSketch
from scheduler_svc.core.types import Advance, Layout, Limits


@dataclass(slots=True, eq=False)
class Room:
    """What one executor could take now, beside what residents still need and what is promised to others.

    Attributes:
        rows: newcomers. blocks: for their tokens.
        num_ahead: tokens to compute before theirs.
        num_resident: sequences there.
    """

    books: ExecutorBooks
    rows: int
    blocks: int
    num_ahead: int
    num_resident: int

    def promise(self, *, num_tokens: int, num_blocks: int) -> None:
        """Somebody will come who is not in the books yet."""
        self.rows -= 1
        self.blocks -= num_blocks
        self.num_ahead += num_tokens
        self.num_resident += 1


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

    def room(self, books: ExecutorBooks) -> Room:
        """What `books` could take now."""
        ...

    def fits(self, seq: Sequence, room: Room, *, hits: list[int]) -> bool:
        """Whether `seq`, with the cached blocks `hits`, could enter."""
        ...

    def lookup(self, seq: Sequence, books: ExecutorBooks) -> list[int]:
        """Blocks of `books` that hold the longest cached prefix that `seq` may use. Full blocks may get names."""
        ...

    def may_hit(self, seq: Sequence, rooms: list[Room]) -> list[Room]:
        """Those of `rooms` where `lookup` would not be empty, and perhaps others: cheap, for whole fleets. Changes nothing."""
        ...

    def choose(self, sketch: StepSketch, router: Router) -> None:
        """Fills the sketch: decodes, prefill chunks, newcomers. Takes newcomers off the queue."""
        ...
