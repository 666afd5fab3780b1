"""Turns a filled draft into a plan, and the books with it."""

from itertools import chain

from scheduler_svc.core.draft import StepDraft
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.policy import AdmissionPolicy
from scheduler_svc.core.residency import publish_scheduled
from scheduler_svc.core.rows import PlanInFlight, RowMap
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.types import Limits, NewSequence, Plan


def assemble(draft: StepDraft, *, policy: AdmissionPolicy, limits: Limits) -> Plan:
    """Sends the draft: afterwards its plan is in flight, its frees are on their way and its prefix blocks can be hit."""
    books = draft.books
    rows = _rows(draft)
    plan = Plan(
        executor_id=books.executor_id,
        step_id=books.next_step,
        grant_id=books.grant_id,
        cohort_id=0,
        based_on_result_step=books.last_result_step,
        cache_op=draft.cache_op,
        layout=draft.layout or policy.layout,
        advance=draft.advance or policy.advance,
        freed_slots=books.pending_freed,
        aborted_slots=books.pending_aborted,
        new_sequences=[_new_sequence(seq) for seq in draft.new],
        want_digests=limits.want_digests,
    )
    _fill_rows(plan, rows, books)
    _fill_blocks(plan, rows, draft)
    books.releasing.extend((plan.step_id, slot) for slot in chain(plan.freed_slots, plan.aborted_slots))
    books.pending_freed, books.pending_aborted = [], []
    if limits.enable_prefix_caching:
        for row in draft.prefills:
            publish_scheduled(books, row.seq, num_tokens=row.start + row.num_tokens, confirmed=False)
    books.in_flight.append(PlanInFlight(plan, rows))
    books.next_step += 1
    return plan


def _rows(draft: StepDraft) -> RowMap:
    if draft.decodes is None:
        return RowMap([], draft.prefills)
    return draft.decodes.beside(draft.prefills) if draft.prefills else draft.decodes


def _new_sequence(seq: Sequence) -> NewSequence:
    return NewSequence(
        slot=seq.slot,
        key=seq.key,
        token_ids=list(seq.tokens),
        num_prompt_tokens=seq.num_prompt,
        num_cached_tokens=seq.num_cached_tokens,
        sampling=seq.request.sampling,
        num_prompt_logprobs_done=seq.num_prompt_logprobs_done,
    )


def _fill_rows(plan: Plan, rows: RowMap, books: ExecutorBooks) -> None:
    """Row columns, or `repeat_rows` when they would say what the last plan with rows said."""
    if len(rows):
        same = rows.keys is books.last_keys or rows.keys == books.last_keys
        all_decode = not rows.prefills
        books.cohort_id += not same
        if same and all_decode and books.last_all_decode:
            plan.repeat_rows = True
        else:
            plan.slots = list(rows.slots)
            plan.row_kinds = rows.kinds()
            plan.num_tokens = [1] * rows.num_decodes + [row.num_tokens for row in rows.prefills]
            plan.starts = [0] * rows.num_decodes + [row.start for row in rows.prefills]
        books.last_keys, books.last_all_decode = rows.keys, all_decode
    plan.cohort_id = books.cohort_id


def _fill_blocks(plan: Plan, rows: RowMap, draft: StepDraft) -> None:
    plan.block_rows, plan.block_ids = draft.decode_blocks
    if not draft.appended:
        return
    wanted = {seq.key for seq, _ in draft.appended}
    index = {key: row for row, key in enumerate(rows.keys) if key in wanted}
    for seq, blocks in draft.appended:
        row = index[seq.key]
        plan.block_rows += [row] * len(blocks)
        plan.block_ids += blocks
