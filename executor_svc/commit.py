"""Folds what a backend sampled back into the slots and says what the plan did.

Legend: R rows of the plan, R' rows that ran, n of them sampled, at S places. Finish is decided here, on the executor's own lengths:
end ids first, then max_tokens and the context's end.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from drumline.errors import Internal
from executor_svc.accept import NO_DRAFT, leading, num_right, within
from executor_svc.batch import Step
from executor_svc.plan import BOOL, COHORT, FINISH_LENGTH, FINISH_STOP, I32, U64, Logprobs, Sampled, StepResult
from executor_svc.slots import Slots


@dataclass(slots=True)
class Emitted:
    """What the n sampling rows made of their places.

    Attributes:
        rows: i32 [n], batch row. slots: i32 [n]. places: i32 [n], how many it has.
        counts: i32 [n], tokens emitted: those at its first places.
        accepted: i32 [n], drafts that stand behind the row's known token now: all emitted tokens but the last.
        kept: i32 [sum of counts], the places, rising.
        reasons: i8 [n], why it ended; 0 = it goes on.
    """

    rows: I32
    slots: I32
    places: I32
    counts: I32
    accepted: I32
    kept: I32
    reasons: "np.ndarray"


def commit(slots: Slots, step: Step, sampled: Sampled) -> StepResult:
    """Writes emitted tokens and lengths, ends finished and failed sequences. The result is the caller's."""
    plan, sample = step.plan, step.batch.sample
    errors = dict(step.errors)
    lost = _lost(sampled, vocab_size=slots.limits.vocab_size)
    failed = _failed(step, sampled, lost=lost, errors=errors)
    out = _emit(slots, step, sampled, lost=lost, failed=failed)
    slots.num_computed[step.slots] += _kept(step, out, failed=failed)
    slots.tokens[sample.slots[out.kept], sample.num_known[out.kept]] = sampled.token_ids[out.kept]
    slots.num_known[out.slots] += out.counts
    lengths: I32 = np.zeros(step.num_rows, np.int32)
    lengths[step.rows] = np.where(failed, 0, slots.num_computed[step.slots])
    finished = _finish(slots, step, out, failed=failed)
    slots.end(step.slots[failed])
    by_row = step.rows[out.rows]
    has_drafts = len(sample.rows) > len(out.rows)
    return StepResult(
        step_id=plan.step_id,
        session_epoch=plan.session_epoch,
        num_emitted=_column(step, by_row, out.counts),
        token_ids=sampled.token_ids[out.kept],
        lengths=lengths,
        num_accepted=_column(step, by_row, out.accepted) if has_drafts else _NONE,
        num_drafted=_column(step, by_row, np.where(out.counts > 0, out.places - 1, 0)) if has_drafts else _NONE,
        finished=finished,
        skipped=step.skipped,
        row_errors=[(row, *errors[row]) for row in sorted(errors)],
        logprobs=_logprobs(step, sampled, out) if sampled.logprobs else {},
        prompt_logprobs=_prompt_logprobs(slots, step, sampled, failed=failed),
        digest=_digest(step, sampled, out, failed=failed),
        num_copied_on_write=len(plan.copy_src),
        num_blocks_in_use=slots.blocks.num_in_use,
        draft_ns=step.draft_ns,
        forward_ns=sampled.forward_ns,
        sample_ns=sampled.sample_ns,
        lead_pad=_column(step, step.rows, sampled.lead_pad) if len(sampled.lead_pad) else _NONE,
        copies=sampled.copies,
    )


_NONE: I32 = np.zeros(0, np.int32)


def _column(step: Step, rows: I32, values: I32) -> I32:
    """A column of the plan's R rows."""
    column: I32 = np.zeros(step.num_rows, np.int32)
    column[rows] = values
    return column


def _lost(sampled: Sampled, *, vocab_size: int) -> BOOL:
    """Places [S] without a token: nothing could be chosen, or what was chosen does not exist."""
    absent: BOOL = (sampled.token_ids < 0) | (sampled.token_ids >= vocab_size)
    return absent | sampled.failed if len(sampled.failed) else absent


def _failed(step: Step, sampled: Sampled, *, lost: BOOL, errors: dict[int, tuple[str, str]]) -> BOOL:
    """Batch rows [R'] that the backend gave up, or whose first token was lost; adds their errors.

    A place behind a row's first may be lost because a wrong draft was fed. If its drafts were right, the next step says so.
    """
    failed = np.zeros(len(step.rows), np.bool_)
    found = dict(sampled.row_errors)
    if lost.any():
        for row in step.batch.sample.rows[step.starts[:-1][lost[step.starts[:-1]]]].tolist():
            found.setdefault(row, (Internal.code, "the sampled token does not exist"))
    for row, error in found.items():
        failed[row] = True
        errors[int(step.rows[row])] = error
    return failed


def _emit(slots: Slots, step: Step, sampled: Sampled, *, lost: BOOL, failed: BOOL) -> Emitted:
    """How many tokens of each sampling row count, and whether it ends with the last of them."""
    sample, starts = step.batch.sample, step.starts
    first, places = starts[:-1], np.diff(starts)
    rows, owners = sample.rows[first], sample.slots[first]
    chosen = sampled.token_ids
    right = num_right(chosen, drafts=_drafts(slots, step), starts=starts)
    counts = np.minimum(right + 1, leading(lost, starts=starts)) if lost.any() else right + 1
    known = slots.num_known[owners]
    left = np.minimum(slots.sampling.max_tokens[owners] - (known - sample.num_prompt[first]), slots.limits.max_model_len - known)
    counts = np.minimum(counts, left)
    reasons = np.where(counts == left, np.int8(FINISH_LENGTH), np.int8(0))
    if len(step.ends.ids):
        hit = np.zeros(len(chosen), np.bool_)
        hit[step.ends.row[chosen[step.ends.row] == step.ends.ids]] = True
        upto = leading(hit & ~sample.ban_end, starts=starts) + 1
        reasons[upto <= counts] = FINISH_STOP
        counts = np.minimum(counts, upto)
    gone = failed[rows]
    counts, reasons = np.where(gone, 0, counts).astype(np.int32), np.where(gone, np.int8(0), reasons)
    return Emitted(rows, owners, places, counts, np.maximum(counts - 1, 0), within(starts, counts), reasons)


def _kept(step: Step, out: Emitted, *, failed: BOOL) -> I32:
    """Tokens of each batch row [R'] that were fed for good: those behind which everything is known to be right. Where all move by
    the slowest, rows that decode keep what the one with the fewest does, and feed the rest again."""
    kept = step.num_fed.copy()
    kept[out.rows] -= out.places - out.counts
    if step.plan.advance == COHORT:
        together = step.decodes & ~failed
        kept[together] = kept[together].min(initial=np.iinfo(np.int32).max)
    return kept


def _drafts(slots: Slots, step: Step) -> I32:
    """The draft that was fed behind each place, i32 [S]; NO_DRAFT behind a row's last one."""
    sample = step.batch.sample
    drafts: I32 = np.full(len(sample.rows), NO_DRAFT, np.int32)
    if len(step.batch.drafts_behind):
        at = np.flatnonzero(step.batch.drafts_behind)
        drafts[at] = slots.tokens[sample.slots[at], sample.num_known[at]]
    return drafts


def _finish(slots: Slots, step: Step, out: Emitted, *, failed: BOOL) -> list[tuple[int, int]]:
    """Ends sequences that are over: (plan row, reason), rising."""
    over = np.flatnonzero(out.reasons)
    scored = step.scored[~failed[step.scored]]
    slots.end(np.concatenate((out.slots[over], step.slots[scored])))
    finished = [(int(step.rows[out.rows[i]]), int(out.reasons[i])) for i in over]
    return sorted(finished + [(int(step.rows[row]), FINISH_LENGTH) for row in scored])


def _digest(step: Step, sampled: Sampled, out: Emitted, *, failed: BOOL) -> U64:
    """By plan row: of the last place that counts, where a row had drafts."""
    digest = np.zeros(step.num_rows if step.plan.want_digests else 0, np.uint64)
    if len(digest) and len(sampled.digest):
        own = sampled.digest.copy()
        if len(sampled.place_digest):
            own[out.rows] = sampled.place_digest[step.starts[:-1] + np.maximum(out.counts, 1) - 1]
        digest[step.rows] = np.where(failed, 0, own)
    return digest


def _logprobs(step: Step, sampled: Sampled, out: Emitted) -> dict[int, Logprobs]:
    """By plan row, of the tokens that it emitted."""
    found: dict[int, Logprobs] = {}
    for row, start, count in zip(step.rows[out.rows].tolist(), step.starts[:-1].tolist(), out.counts.tolist(), strict=True):
        own = [sampled.logprobs[place] for place in range(start, start + count) if place in sampled.logprobs]
        if len(own) > 1:
            columns = (np.concatenate([getattr(score, field.name) for score in own]) for field in dataclasses.fields(Logprobs))
            found[row] = Logprobs(*columns)
        elif own:
            found[row] = own[0]
    return found


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
