"""How many drafts of each decode row a step has room for. Drafts never take what others need."""

import numpy as np

from scheduler_svc.core.drafting import Drafting
from scheduler_svc.core.rows import I64, RowMap
from scheduler_svc.core.sketch import StepSketch


def drafts_that_fit(sketch: StepSketch, rows: RowMap, drafting: Drafting, *, tails: I64) -> I64 | None:
    """i64 [R], behind `tails` i64 [R], the known tokens that each row feeds; None = nobody drafts. Changes nothing.

    Drafts shrink with the budget, half of which is left to prompts, and nobody is preempted for them.
    """
    books, cols, slots = sketch.books, sketch.books.cols, rows.decode_slots
    num_known = int(tails.sum())
    room = sketch.budget - num_known
    waiting = sum(seq.num_known - cols.upper_of(seq.slot) for seq in books.prefilling)
    drafts = drafting.choose(slots, step=books.next_step, num_others=num_known - len(rows) + min(waiting, room))
    if drafts is None:
        return None
    fed, capacity = cols.upper[slots] + tails, cols.capacity[slots]
    # no more than may be emitted before the last token, and than one more block holds
    most = np.minimum(cols.limit[slots], capacity + books.kv.block_size) - fed
    drafts = np.clip(np.minimum(drafting.depth + 1 - tails, most), 0, drafts)
    drafts[np.cumsum(drafts) > (room // 2 if waiting or len(sketch.queue) else room)] = 0
    num_short = np.count_nonzero(fed + drafts > capacity)
    return drafts if drafts.any() and num_short <= books.kv.pool.num_available else None
