"""The law's three tables: exact integers, counted in the rows of real plans.

With B admitted sequences at D cache lengths, a scheduler that may not mix lengths runs B / D of them a step; one that may runs B.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_svc.law.clockwork import Clockwork

NUM_STEPS, GAP, FIRST_LENGTH = 32, 64, 100
CASES = ((8, 8), (32, 8), (32, 32), (128, 32), (128, 128))
CURVE = (8, 32, 128)
BOUNDARY = (2, 3, 4, 5, 6, 7, 8)
ROWS_PER_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: rows over all steps, and in the last one, which is the effective batch."""

    num_rows: int
    last_rows: int


@dataclass(frozen=True, slots=True)
class Case:
    """`num_sequences` at `num_lengths` lengths, refused and granted."""

    num_sequences: int
    num_lengths: int
    refused: Cell
    granted: Cell


@dataclass(frozen=True, slots=True)
class Edge:
    """Whether lengths that lie `GAP` apart are let catch up.

    Attributes:
        waited: (D - 1) * GAP, what the override weighs against its payback.
        whole_after: steps until all rows run together; None = not in sight.
    """

    num_lengths: int
    waited: int
    whole_after: int | None


def lengths_of(num_sequences: int, num_lengths: int) -> list[int]:
    """Cache lengths 100, 164, 228, ... dealt out in turn."""
    return [FIRST_LENGTH + index % num_lengths * GAP for index in range(num_sequences)]


def run(num_sequences: int, num_lengths: int, *, granted: bool) -> Cell:
    """One cell of the law. Both columns are this function."""
    clockwork = Clockwork(lengths_of(num_sequences, num_lengths), granted=granted)
    rows = [clockwork.step() for _ in range(NUM_STEPS)]
    return Cell(sum(rows), rows[-1])


def law(cases: Sequence[tuple[int, int]] = CASES) -> list[Case]:
    """The table."""
    return [Case(*case, refused=run(*case, granted=False), granted=run(*case, granted=True)) for case in cases]


def curve(sizes: Sequence[int] = CURVE) -> tuple[list[int], list[int]]:
    """Effective batch when every sequence has a length of its own, refused and granted, by the number admitted."""
    cases = law([(size, size) for size in sizes])
    return [case.refused.last_rows for case in cases], [case.granted.last_rows for case in cases]


def trace(num_lengths: int, *, num_steps: int) -> list[int]:
    """Rows of each step, refused, with `ROWS_PER_LENGTH` sequences at each of the lengths."""
    clockwork = Clockwork(lengths_of(ROWS_PER_LENGTH * num_lengths, num_lengths), granted=False)
    return [clockwork.step() for _ in range(num_steps)]


def boundary(counts: Sequence[int] = BOUNDARY) -> list[Edge]:
    """Where letting the shortest catch up stops paying: (D - 1) * 64 against 256."""
    edges = []
    for num_lengths in counts:
        waited = (num_lengths - 1) * GAP
        rows = trace(num_lengths, num_steps=waited + GAP)
        whole = ROWS_PER_LENGTH * num_lengths
        edges.append(Edge(num_lengths, waited, rows.index(whole) if whole in rows else None))
    return edges
