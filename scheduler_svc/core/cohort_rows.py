"""Puts the rows of a chosen bucket into a sketch, and into the books with it: completions as one step, prompts as another."""

from collections.abc import Iterable

from scheduler_svc.core.policy import AdmissionPolicy
from scheduler_svc.core.residency import place
from scheduler_svc.core.rows import PrefillRow, RowMap
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.sketch import StepSketch


def decode_rows(sketch: StepSketch, seqs: list[Sequence]) -> RowMap:
    """One token by each of `seqs`, in key order; blocks that are short are taken from the youngest residents."""
    books, cols = sketch.books, sketch.books.cols
    rows = books.decode_rows() if len(seqs) == len(books.decoding) else RowMap(seqs, [])
    short = cols.short_of_blocks(rows.decode_slots)
    if len(short) <= books.kv.pool.num_available:
        sketch.grow_decodes(rows, short)
    else:
        for seq in [rows.seqs[row] for row in short]:
            if seq.state is State.RUNNING:
                sketch.grow(seq, int(cols.upper[seq.slot]) + 1)
        rows = RowMap([seq for seq in seqs if seq.state is State.RUNNING and cols.upper[seq.slot] < cols.capacity[seq.slot]], [])
    cols.plan(rows.decode_slots, step=books.next_step)
    sketch.decodes = rows
    sketch.budget -= len(rows)
    if done := (cols.upper[rows.decode_slots] >= cols.limit[rows.decode_slots]).nonzero()[0].tolist():
        books.retire([rows.seqs[row] for row in done])
    return rows


def prompt_rows(sketch: StepSketch, seqs: Iterable[Sequence], *, policy: AdmissionPolicy) -> int:
    """Dense rows [rows, tokens]: each of `seqs` that begins where the first does, with as many tokens, as far as the budget goes.

    A prompt is fed whole; one that is longer than the budget goes alone, a chunk a step. Newcomers, which come last, are placed. A
    sequence that no longer fits is left out: it stands for the next decision. Returns where the rows begin.
    """
    count = offset = -1
    for seq in seqs:
        if seq in sketch.preempted:
            continue
        start = start_of(seq, sketch, policy=policy)
        left = len(seq.tokens) - start
        if count < 0:
            count, offset = left, start
        if left != count or start != offset:
            continue
        if sketch.budget < count and sketch.prefills:
            break
        _feed(sketch, seq, start=start, count=min(count, sketch.budget), policy=policy)
    return max(offset, 0)


def start_of(seq: Sequence, sketch: StepSketch, *, policy: AdmissionPolicy) -> int:
    """Where the next row of a prompt begins: behind its chunks, or behind the prefix that a newcomer would hit."""
    if seq.state is State.RUNNING:
        return sketch.books.cols.upper_of(seq.slot)
    return len(policy.lookup(seq, sketch.books)) * sketch.books.kv.block_size


def _feed(sketch: StepSketch, seq: Sequence, *, start: int, count: int, policy: AdmissionPolicy) -> None:
    books, cols = sketch.books, sketch.books.cols
    if seq.state is not State.RUNNING and not _enter(sketch, seq, policy=policy):
        return
    if not sketch.grow(seq, start + count):
        return
    is_last = start + count == seq.num_known
    cols.feed(seq.slot, end=start + count, step=books.next_step)
    sketch.budget -= count
    sketch.prefills.append(PrefillRow(seq, start, count, is_last))
    if is_last:
        books.finish_prefill(seq)


def _enter(sketch: StepSketch, seq: Sequence, *, policy: AdmissionPolicy) -> bool:
    """Gives a newcomer a slot, if there is still room beside those that entered before it."""
    hits = policy.lookup(seq, sketch.books)
    if not policy.fits(seq, policy.room(sketch.books), hits=hits):
        return False
    sketch.queue.remove(seq)
    place(sketch.books, seq, hits=hits)
    sketch.new.append(seq)
    if hits:
        sketch.appended.append((seq, list(hits)))
    return True
