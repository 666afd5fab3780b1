"""Puts the rows of a chosen bucket into a draft, and into the books with it: completions as one step, prompts as another."""

from collections.abc import Iterable

from scheduler_svc.core.draft import StepDraft
from scheduler_svc.core.policy import AdmissionPolicy
from scheduler_svc.core.residency import place
from scheduler_svc.core.rows import PrefillRow, RowMap
from scheduler_svc.core.sequence import Sequence, State


def decode_rows(draft: StepDraft, seqs: list[Sequence]) -> RowMap:
    """One token by each of `seqs`, in key order; blocks that are short are taken from the youngest residents."""
    books, cols = draft.books, draft.books.cols
    rows = books.decode_rows() if len(seqs) == len(books.decoding) else RowMap(seqs, [])
    short = cols.short_of_blocks(rows.decode_slots)
    if len(short) <= books.kv.pool.num_available:
        draft.grow_decodes(rows, short)
    else:
        for seq in [rows.seqs[row] for row in short]:
            if seq.state is State.RUNNING:
                draft.grow(seq, int(cols.upper[seq.slot]) + 1)
        rows = RowMap([seq for seq in seqs if seq.state is State.RUNNING and cols.upper[seq.slot] < cols.capacity[seq.slot]], [])
    cols.plan(rows.decode_slots, step=books.next_step)
    draft.decodes = rows
    draft.budget -= len(rows)
    if done := (cols.upper[rows.decode_slots] >= cols.limit[rows.decode_slots]).nonzero()[0].tolist():
        books.retire([rows.seqs[row] for row in done])
    return rows


def prompt_rows(draft: StepDraft, seqs: Iterable[Sequence], *, policy: AdmissionPolicy) -> int:
    """Dense rows [rows, tokens]: each of `seqs` that begins where the first does, with as many tokens, as far as the budget goes.

    A prompt is fed whole; one that is longer than the budget goes alone, a chunk a step. Newcomers, which come last, are placed. A
    sequence that no longer fits is left out: it stands for the next decision. Returns where the rows begin.
    """
    count = offset = -1
    for seq in seqs:
        if seq in draft.preempted:
            continue
        start = start_of(seq, draft, policy=policy)
        left = len(seq.tokens) - start
        if count < 0:
            count, offset = left, start
        if left != count or start != offset:
            continue
        if draft.budget < count and draft.prefills:
            break
        _feed(draft, seq, start=start, count=min(count, draft.budget), policy=policy)
    return max(offset, 0)


def start_of(seq: Sequence, draft: StepDraft, *, policy: AdmissionPolicy) -> int:
    """Where the next row of a prompt begins: behind its chunks, or behind the prefix that a newcomer would hit."""
    if seq.state is State.RUNNING:
        return draft.books.cols.upper_of(seq.slot)
    return len(policy.lookup(seq, draft.books)) * draft.books.kv.block_size


def _feed(draft: StepDraft, seq: Sequence, *, start: int, count: int, policy: AdmissionPolicy) -> None:
    books, cols = draft.books, draft.books.cols
    if seq.state is not State.RUNNING and not _enter(draft, seq, policy=policy):
        return
    if not draft.grow(seq, start + count):
        return
    is_last = start + count == seq.num_known
    cols.feed(seq.slot, end=start + count, step=books.next_step)
    draft.budget -= count
    draft.prefills.append(PrefillRow(seq, start, count, is_last))
    if is_last:
        books.finish_prefill(seq)


def _enter(draft: StepDraft, seq: Sequence, *, policy: AdmissionPolicy) -> bool:
    """Gives a newcomer a slot, if there is still room beside those that entered before it."""
    hits = policy.lookup(seq, draft.books)
    if not policy.fits(seq, policy.room(draft.books), hits=hits):
        return False
    draft.queue.remove(seq)
    place(draft.books, seq, hits=hits)
    draft.new.append(seq)
    if hits:
        draft.appended.append((seq, list(hits)))
    return True
