"""Folds what a backend sampled back into the slots and says what the plan did.

Legend: R rows of the plan, R' rows that ran, S rows that sampled. Finish is decided here, on the executor's own lengths: end ids
first, then max_tokens and the context's end.
"""

import dataclasses

import numpy as np

from drumline.errors import Internal
from executor_svc.batch import Step
from executor_svc.plan import BOOL, FINISH_LENGTH, FINISH_STOP, I32, Logprobs, Sampled, StepResult
from executor_svc.slots import Slots


def commit(slots: Slots, step: Step, sampled: Sampled) -> StepResult:
    """Writes emitted tokens and lengths, ends finished and failed sequences. The result is the caller's."""
    plan, sample = step.plan, step.batch.sample
    errors = dict(step.errors)
    failed = _failed(step, sampled, vocab_size=slots.limits.vocab_size, errors=errors)
    slots.num_computed[step.slots] += step.num_fed
    emitting = ~failed[sample.rows]
    token_ids, rows = sampled.token_ids[emitting], sample.rows[emitting]
    slots.tokens[sample.slots[emitting], sample.num_known[emitting]] = token_ids
    slots.num_known[sample.slots[emitting]] += 1
    num_emitted: I32 = np.zeros(step.num_rows, np.int32)
    num_emitted[step.rows[rows]] = 1
    lengths: I32 = np.zeros(step.num_rows, np.int32)
    lengths[step.rows] = np.where(failed, 0, slots.num_computed[step.slots])
    finished = _finish(slots, step, sampled, failed=failed)
    slots.end(step.slots[failed])
    digest = np.zeros(step.num_rows if plan.want_digests else 0, np.uint64)
    if len(digest) and len(sampled.digest):
        digest[step.rows] = np.where(failed, 0, sampled.digest)
    lead_pad: I32 = np.zeros(step.num_rows if len(sampled.lead_pad) else 0, np.int32)
    if len(lead_pad):
        lead_pad[step.rows] = sampled.lead_pad
    return StepResult(
        step_id=plan.step_id,
        session_epoch=plan.session_epoch,
        num_emitted=num_emitted,
        token_ids=token_ids,
        lengths=lengths,
        finished=finished,
        skipped=step.skipped,
        row_errors=[(row, *errors[row]) for row in sorted(errors)],
        logprobs={int(step.rows[sample.rows[s]]): lp for s, lp in sorted(sampled.logprobs.items()) if emitting[s]},
        prompt_logprobs=_prompt_logprobs(slots, step, sampled, failed=failed),
        digest=digest,
        num_copied_on_write=len(plan.copy_src),
        num_blocks_in_use=slots.blocks.num_in_use,
        forward_ns=sampled.forward_ns,
        sample_ns=sampled.sample_ns,
        lead_pad=lead_pad,
        copies=sampled.copies,
    )


def _failed(step: Step, sampled: Sampled, *, vocab_size: int, errors: dict[int, tuple[str, str]]) -> BOOL:
    """Batch rows [R'] that the backend gave up, or for which it made a token that does not exist; adds their errors."""
    failed = np.zeros(len(step.rows), np.bool_)
    found = dict(sampled.row_errors)
    ids = sampled.token_ids
    if (absent := (ids < 0) | (ids >= vocab_size)).any():
        for s in np.flatnonzero(absent):
            found.setdefault(int(step.batch.sample.rows[s]), (Internal.code, "the sampled token does not exist"))
    for row, error in found.items():
        failed[row] = True
        errors[int(step.rows[row])] = error
    return failed


def _finish(slots: Slots, step: Step, sampled: Sampled, *, failed: BOOL) -> list[tuple[int, int]]:
    """Ends sequences that are over: (plan row, reason), rising."""
    sample, ends = step.batch.sample, step.ends
    known = slots.num_known[sample.slots]
    reason = np.zeros(len(known), np.int8)
    full = (known - sample.num_prompt >= slots.sampling.max_tokens[sample.slots]) | (known >= slots.limits.max_model_len)
    reason[full] = FINISH_LENGTH
    if len(ends.ids):
        hit = np.zeros(len(known), np.bool_)
        hit[ends.row[sampled.token_ids[ends.row] == ends.ids]] = True
        reason[hit & ~sample.ban_end] = FINISH_STOP
    reason[failed[sample.rows]] = 0
    over = np.flatnonzero(reason)
    scored = step.scored[~failed[step.scored]]
    slots.end(np.concatenate((sample.slots[over], step.slots[scored])))
    finished = [(int(step.rows[sample.rows[s]]), int(reason[s])) for s in over]
    return sorted(finished + [(int(step.rows[row]), FINISH_LENGTH) for row in scored])


def _prompt_logprobs(slots: Slots, step: Step, sampled: Sampled, *, failed: BOOL) -> dict[int, Logprobs]:
    """By plan row, without the leading ones that were delivered before the sequence moved here."""
    result: dict[int, Logprobs] = {}
    for row, scores in sorted(sampled.prompt_logprobs.items()):
        slot = step.slots[row]
        before = int(step.batch.positions[step.batch.query_start[row]])
        skip = max(0, int(slots.sampling.prompt_done[slot]) - before)
        if not failed[row] and skip < len(scores.token_ids):
            columns = (getattr(scores, column.name)[skip:] for column in dataclasses.fields(scores))
            result[int(step.rows[row])] = Logprobs(*columns)
    return result
