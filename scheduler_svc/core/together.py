"""COHORT over blocks: rows that decode all move by the slowest, and the others feed again what they are ahead.

A row that was emitted more tokens than everybody keeps has a tail: known tokens that its cache is not to hold yet. It feeds them
all, and drafts only as far as the tail leaves room: with drafts up to depth k, tail and drafts are at most k + 1 tokens. So who
guesses well ends with a tail of k + 1 and guesses no more, which is what the request's engine did, and what PER_SEQUENCE is
compared against (domain.md 4.3).
"""

import numpy as np

from scheduler_svc.core.drafting import Drafting
from scheduler_svc.core.rows import I64, RowMap
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
    fed = tails + _drafts(sketch, rows, drafting, tails=tails)
    for seq, end in zip(rows.seqs, (cols.upper[slots] + fed).tolist(), strict=True):
        sketch.grow(seq, end)
    cols.plan_many(slots, fed, step=books.next_step)
    sketch.decodes = rows.drafting((fed - tails).tolist(), tails=tails.tolist())
    sketch.budget -= sketch.decodes.num_tokens
    books.retire_done(rows, left=cols.limit[slots] - cols.upper[slots])


def _drafts(sketch: StepSketch, rows: RowMap, drafting: Drafting, *, tails: I64) -> I64:
    """Drafts of each row: behind its tail, and no more than may be emitted, than one more block holds, and than others leave."""
    books, cols, slots = sketch.books, sketch.books.cols, rows.decode_slots
    room = sketch.budget - int(tails.sum())
    waiting = sum(seq.num_known - cols.upper_of(seq.slot) for seq in books.prefilling)
    others = int(tails.sum()) - len(rows) + min(waiting, room)
    none = np.zeros(len(rows), np.int64)
    chosen = drafting.choose(slots, step=books.next_step, num_others=others)
    if chosen is None:
        return none
    fed, capacity = cols.upper[slots] + tails, cols.capacity[slots]
    most = np.minimum(drafting.depth + 1 - tails, np.minimum(cols.limit[slots], capacity + books.kv.block_size) - fed)
    drafts = np.maximum(np.minimum(chosen, most), 0)
    drafts[np.cumsum(drafts) > (room // 2 if waiting or len(sketch.queue) else room)] = 0
    num_short = int((fed + drafts > capacity).sum())
    return drafts if num_short <= books.kv.pool.num_available else none
