"""How many rows of a ragged cohort fit side by side on an executor: each takes as many columns as the longest of them.

Blocks are counted for each row by its own length, so that one long row among short ones can fit into the blocks and yet make a
cohort that does not fit into the same memory. The executor would refuse it, and every row would end for the sake of one.
"""

from collections.abc import Sequence

from scheduler_svc.core.bucket_key import Candidate

TILE = 16
"""Columns are taken in tiles of so many, and an executor keeps one more behind the last: it may load what it does not look at."""


def rows_side_by_side(rows: Sequence[Candidate], *, num_columns: int) -> list[Candidate]:
    """Those of `rows` that run together within `num_columns` columns, in their order; one at least.

    Who has waited longest comes first, then who is shortest, so that a long row waits its turn and then takes it.
    """
    picked: set[int] = set()
    widest = 0
    for row in sorted(rows, key=lambda row: (-row.urgency, row.length, row.key)):
        width = max(widest, (row.length // TILE + 2) * TILE)
        if not picked or (len(picked) + 1) * width <= num_columns:
            picked.add(row.key)
            widest = width
    return [row for row in rows if row.key in picked]
