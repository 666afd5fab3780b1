"""COHORT over blocks: rows that decode all move by the slowest, and the others feed again what they are ahead.

A row that was emitted more tokens than everybody keeps has a tail: known tokens that its cache is not to hold yet. It feeds them
all, and drafts only as far as the tail leaves room: with drafts up to depth k, tail and drafts are at most k + 1 tokens. So who
guesses well ends with a tail of k + 1 and guesses no more, which is what the request's engine did, and what PER_SEQUENCE is
compared against (domain.md 4.3).
"""

import numpy as np

from scheduler_svc.core.draft_room import drafts_that_fit
from scheduler_svc.core.drafting import Drafting
from scheduler_svc.core.rows import RowMap
from scheduler_svc.core.sequence import State
from scheduler_svc.core.sketch import StepSketch


def choose_together(sketch: StepSketch, drafting: Drafting) -> None:
    """Decode rows with their tails, and drafts where they are worth it. Nothing else is in flight: tails are known."""
    books, cols = sketch.books, sketch.books.cols
    for seq in list(books.decoding):
        if seq.state is State.RUNNING:
            sketch.grow(seq, len(seq.tokens))
    rows = RowMap([seq for seq in books.decoding if len(seq.tokens) <= cols.capacity[seq.slot]], [])
    if not len(rows):
        return
    slots = rows.decode_slots
    tails = np.array([len(seq.tokens) for seq in rows.seqs], np.int64) - cols.confirmed[slots]
    drafts = drafts_that_fit(sketch, rows, drafting, tails=tails)
    fed = tails if drafts is None else tails + drafts
    for seq, end in zip(rows.seqs, (cols.upper[slots] + fed).tolist(), strict=True):
        sketch.grow(seq, end)
    cols.plan_many(slots, fed, step=books.next_step)
    sketch.decodes = rows.drafting((fed - tails).tolist(), tails=tails.tolist())
    sketch.budget -= sketch.decodes.num_tokens
    books.retire_done(rows, left=cols.limit[slots] - cols.upper[slots])
