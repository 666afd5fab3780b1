"""Which tokens of a verified row count: as many drafts as equal what the target chose, and the target's own choice behind them.

The target chooses every token as it would without drafts: the noise is keyed by (seed, output position, token id), so what it
chooses behind the same tokens does not depend on who guessed them. Output with drafts therefore equals output without, greedy or
sampled. (Rejection sampling, Leviathan et al. 2023, keeps the distribution only, not the tokens.)

Legend: S entries, one for each place where the target chose; n rows, whose entries lie behind each other: row i has
starts[i]:starts[i+1], the first for the token that is known, the others for its drafts in order.
"""

from typing import Final

import numpy as np

from executor_svc.plan import BOOL, I32

NO_DRAFT: Final = -1
"""Stands where an entry has no draft behind it: no choice equals it."""


def num_right(chosen: I32, *, drafts: I32, starts: I32) -> I32:
    """Leading drafts of each row that equal the target's choices, i32 [n].

    `chosen`, `drafts`: i32 [S], the choice at an entry and the draft that was fed behind it, NO_DRAFT at a row's last entry.
    """
    if len(chosen) == len(starts) - 1:
        return np.zeros(len(chosen), np.int32)
    return leading(chosen != drafts, starts=starts)


def leading(stop: BOOL, *, starts: I32) -> I32:
    """Entries of each row before the first where `stop` holds; all of them where it holds nowhere. i32 [n]."""
    sizes = np.diff(starts)
    if not len(sizes):
        return sizes
    place = np.where(stop, np.arange(len(stop), dtype=np.int32), np.int32(len(stop)))
    first: I32 = np.minimum.reduceat(place, starts[:-1]).astype(np.int32)
    counts: I32 = np.minimum(first - starts[:-1], sizes)
    return counts


def within(starts: I32, counts: I32) -> I32:
    """The first `counts[i]` entries of each row, rising: i32 [sum of counts]."""
    total = np.cumsum(counts, dtype=np.int32)
    places: I32 = np.arange(total[-1] if len(total) else 0, dtype=np.int32) + np.repeat(starts[:-1] - (total - counts), counts)
    return places
