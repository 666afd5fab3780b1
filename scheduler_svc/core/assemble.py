"""Turns a filled sketch into a plan, and the books with it."""

from itertools import chain

from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.policy import AdmissionPolicy
from scheduler_svc.core.residency import publish_scheduled
from scheduler_svc.core.rows import PlanInFlight, RowMap
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.sketch import StepSketch
from scheduler_svc.core.types import Limits, NewSequence, Plan


def assemble(sketch: StepSketch, *, policy: AdmissionPolicy, limits: Limits) -> Plan:
    """Sends the sketch: afterwards its plan is in flight, its frees are on their way and its prefix blocks can be hit."""
    books = sketch.books
    rows = _rows(sketch)
    plan = Plan(
        executor_id=books.executor_id,
        step_id=books.next_step,
        grant_id=books.grant_id,
        cohort_id=0,
        based_on_result_step=books.last_result_step,
        cache_op=sketch.cache_op,
        layout=sketch.layout or policy.layout,
        advance=sketch.advance or policy.advance,
        freed_slots=books.pending_freed,
        aborted_slots=books.pending_aborted,
        new_sequences=[_new_sequence(seq) for seq in sketch.new],
        want_digests=limits.want_digests,
    )
    _fill_rows(plan, rows, books)
    _fill_blocks(plan, rows, sketch)
    books.releasing.extend((plan.step_id, slot) for slot in chain(plan.freed_slots, plan.aborted_slots))
    books.pending_freed, books.pending_aborted = [], []
    if limits.enable_prefix_caching:
        for row in sketch.prefills:
            publish_scheduled(books, row.seq, num_tokens=row.start + row.num_tokens, confirmed=False)
    books.in_flight.append(PlanInFlight(plan, rows))
    books.next_step += 1
    return plan


def _rows(sketch: StepSketch) -> RowMap:
    if sketch.decodes is None:
        return RowMap([], sketch.prefills)
    return sketch.decodes.beside(sketch.prefills) if sketch.prefills else sketch.decodes


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
        all_decode = not rows.prefills and rows.drafts is None
        books.cohort_id += not same
        if same and all_decode and books.last_all_decode:
            plan.repeat_rows = True
        else:
            plan.slots = list(rows.slots)
            plan.row_kinds = rows.kinds()
            drafts = rows.drafts
            plan.num_tokens = rows.decode_tokens() + [row.num_tokens for row in rows.prefills]
            plan.draft_len = [] if drafts is None else drafts + [0] * len(rows.prefills)
            plan.starts = [0] * rows.num_decodes + [row.start for row in rows.prefills]
        books.last_keys, books.last_all_decode = rows.keys, all_decode
    plan.cohort_id = books.cohort_id


def _fill_blocks(plan: Plan, rows: RowMap, sketch: StepSketch) -> None:
    plan.block_rows, plan.block_ids = sketch.decode_blocks
    if not sketch.appended:
        return
    wanted = {seq.key for seq, _ in sketch.appended}
    index = {key: row for row, key in enumerate(rows.keys) if key in wanted}
    for seq, blocks in sketch.appended:
        row = index[seq.key]
        plan.block_rows += [row] * len(blocks)
        plan.block_ids += blocks
