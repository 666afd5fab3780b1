"""Applies a plan to the slots and builds the batch that a backend runs.

Legend: R rows of the plan, R' rows that run, n of them sample, at S places (one each, and one more for each draft), T fed tokens.
In steady decode no Python runs per row: the row map is kept from the last plan that had rows, sampling columns from the last step
with the same rows.
"""

import dataclasses
import logging
import time
from dataclasses import dataclass, field

import numpy as np

from drumline.errors import PlanRejected
from executor_svc.drafter import Drafter
from executor_svc.plan import BOOL, DECODE, I32, PAGED, PREFILL, Batch, Plan, SampleColumns
from executor_svc.rows import Rows, judge
from executor_svc.sampling import Ends, at_each_place
from executor_svc.slots import Slots

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Step:
    """One applied plan on its way through forward and commit.

    Attributes:
        rows: i32 [R'], plan row of each batch row, rising. slots, num_fed: i32 [R']. decodes: bool [R'].
        starts: i32 [n+1], places of the sampling rows: row i chose at starts[i]:starts[i+1].
        ends: end ids at the places, flat. min_tokens_left: bool [S] is `batch.sample.ban_end`.
        scored: i32, batch rows that end without sampling (max_tokens 0 after their last chunk).
        skipped, errors: plan rows that do not run.
    """

    plan: Plan
    num_rows: int
    rows: I32
    slots: I32
    num_fed: I32
    decodes: BOOL
    starts: I32
    ends: Ends
    scored: I32
    batch: Batch
    skipped: list[int] = field(default_factory=list)
    errors: dict[int, tuple[str, str]] = field(default_factory=dict)
    draft_ns: int = 0


class Assembler:
    """Turns plans into batches over one session's slots; owns the row map that `repeat_rows` refers to."""

    def __init__(self, slots: Slots, drafter: Drafter | None = None) -> None:
        self._slots = slots
        self._drafter = drafter
        self._rows: Rows | None = None
        self._is_paged: bool | None = None
        self._kept: tuple[int, SampleColumns, Ends] | None = None

    def apply(self, plan: Plan) -> Step:
        """Frees and aborts, then new sequences, then copies, then rows. Raises PlanRejected for a plan that is wrong as a whole."""
        slots = self._slots
        slots.free(plan.freed_slots)
        slots.abort(plan.aborted_slots)
        for new in plan.new_sequences:
            slots.enter(new)
        self._check_copies(plan)
        rows = self._rows_of(plan)
        if len(rows.slots):
            self._check_layout(plan)
        verdict = judge(slots, rows, block_rows=plan.block_rows, block_ids=plan.block_ids, lives_in_blocks=plan.layout == PAGED)
        live = np.flatnonzero(verdict.running).astype(np.int32)
        step_slots, kinds, fed, planned = rows.slots, rows.kinds, rows.num_tokens, rows.draft_len
        if len(live) < len(step_slots):
            step_slots, kinds, fed, planned = step_slots[live], kinds[live], fed[live], planned[live]
        if int(fed.sum(dtype=np.int64)) > slots.limits.max_num_batched_tokens:
            raise PlanRejected(f"the plan feeds more tokens than max_num_batched_tokens, {slots.limits.max_num_batched_tokens}")
        sampling = (kinds != PREFILL) & (slots.sampling.max_tokens[step_slots] > 0)
        started_ns = time.monotonic_ns()
        drafted = self._draft(step_slots, planned=planned) if planned.any() else np.zeros_like(planned)
        draft_ns = time.monotonic_ns() - started_ns
        fed = fed - (planned - drafted)
        sample, ends, starts = self._sample_columns(step_slots, sampling=sampling, drafted=drafted)
        batch = self._build(plan, step_slots, kinds=kinds, fed=fed, sample=sample)
        if int(drafted.sum()):
            batch.drafts_behind = np.repeat(starts[1:], np.diff(starts)) - 1 - np.arange(starts[-1], dtype=np.int32)
        scored = np.flatnonzero((kinds != PREFILL) & ~sampling).astype(np.int32)
        size = len(rows.slots)
        decodes = kinds == DECODE
        skipped, errors = verdict.skipped, verdict.errors
        return Step(plan, size, live, step_slots, fed, decodes, starts, ends, scored, batch, skipped, errors, draft_ns)

    def _draft(self, rows: I32, *, planned: I32) -> I32:
        """Lets the drafter guess at most `planned` tokens of each row, and no more than could be emitted before the last one.

        Guesses lie behind the known tokens of their slots, where the next step looks for nothing. Returns how many, i32 [R'].
        """
        slots = self._slots
        drafted = np.zeros_like(planned)
        asked = np.flatnonzero(planned)
        if self._drafter is None:
            return drafted
        known, columns = slots.num_known[rows[asked]], slots.sampling
        left = np.minimum(
            columns.max_tokens[rows[asked]] - (known - slots.num_prompt[rows[asked]]), slots.limits.max_model_len - known
        )
        try:
            drafts = self._drafter.propose(slots, rows[asked], most=np.minimum(planned[asked], left - 1))
        except Exception:
            log.exception("drafter %s failed; the step goes on without drafts", self._drafter.name)
            return drafted
        drafted[asked] = drafts.counts
        wanted = np.arange(drafts.token_ids.shape[1]) < drafts.counts[:, None]
        owner, place = np.nonzero(wanted)
        slots.tokens[rows[asked][owner], known[owner] + place] = drafts.token_ids[wanted]
        return drafted

    def _rows_of(self, plan: Plan) -> Rows:
        if not plan.repeat_rows:
            rows = Rows.of(plan, num_slots=self._slots.limits.num_slots)
            if len(rows.slots):
                self._rows = rows
            return rows
        if self._rows is None:
            raise PlanRejected("repeat_rows, but no plan of this session had rows")
        self._rows = self._rows.decoding()
        return self._rows

    def _check_layout(self, plan: Plan) -> None:
        """Rows that live in blocks and rows with caches of their own do not know of each other."""
        is_paged = plan.layout == PAGED
        if self._is_paged is None:
            self._is_paged = is_paged
        if is_paged != self._is_paged:
            raise PlanRejected("a session keeps to LAYOUT_PAGED or to the dense layouts; this plan changes over")

    def _check_copies(self, plan: Plan) -> None:
        """Copies are made at the same time: a block that two of them write would hold parts of both."""
        num_blocks = self._slots.limits.num_blocks
        for name, ids in (("copy_src", plan.copy_src), ("copy_dst", plan.copy_dst)):
            outside = ids[(ids < 0) | (ids >= num_blocks)]
            if len(outside):
                raise PlanRejected(f"{name} names block {outside[0]}; block ids are 0 to {num_blocks - 1}")
        blocks, times = np.unique(plan.copy_dst, return_counts=True)
        if len(twice := blocks[times > 1]):
            raise PlanRejected(f"copy_dst names block {twice[0]} more than once; only one copy may go into a block")

    def _build(self, plan: Plan, rows: I32, *, kinds: I32, fed: I32, sample: SampleColumns) -> Batch:
        slots = self._slots
        base = slots.num_computed[rows]
        query_start, positions, owners = _flatten(rows, fed=fed, base=base)
        width = int(slots.blocks.count[rows].max(initial=0))
        batch = Batch(
            token_ids=slots.tokens[owners, positions],
            positions=positions,
            query_start=query_start,
            context_len=base + fed,
            block_tables=slots.blocks.table[rows, :width],
            sample=sample,
            prompt_logprob_rows=np.zeros(0, np.int32),
            prompt_num_top=np.zeros(0, np.int32),
            copy_src=plan.copy_src,
            copy_dst=plan.copy_dst,
            want_digests=plan.want_digests,
            layout=plan.layout,
            cache_op=plan.cache_op,
            slots=rows,
            left_slots=slots.take_left(),
        )
        if slots.sampling.prompt_logprobs[rows].any():
            self._score_prompts(batch, rows, kinds=kinds, fed=fed, base=base)
        return batch

    def _sample_columns(self, rows: I32, *, sampling: BOOL, drafted: I32) -> tuple[SampleColumns, Ends, I32]:
        """Columns of the places, and where each sampling row's begin [n+1]; what does not move is gathered only when the rows or
        their sequences changed."""
        slots = self._slots
        index = np.flatnonzero(sampling).astype(np.int32)
        picked = rows[index]
        if self._kept is None or self._kept[0] != slots.version or not np.array_equal(self._kept[1].slots, picked):
            self._kept = (slots.version, *slots.sampling.gather(picked, tokens=slots.tokens, num_prompt=slots.num_prompt))
        _, columns, ends = self._kept
        known = slots.num_known[picked]
        starts = np.arange(len(index) + 1, dtype=np.int32)
        if drafted.any():
            times = 1 + drafted[index]
            np.cumsum(times, out=starts[1:])
            columns, ends = at_each_place(columns, ends, times=times)
            index = np.repeat(index, times)
            known = np.repeat(known - starts[:-1], times) + np.arange(starts[-1], dtype=np.int32)
        output_pos = known - columns.num_prompt
        ban_end = output_pos < slots.sampling.min_tokens[columns.slots]
        return dataclasses.replace(columns, rows=index, num_known=known, output_pos=output_pos, ban_end=ban_end), ends, starts

    def _score_prompts(self, batch: Batch, rows: I32, *, kinds: I32, fed: I32, base: I32) -> None:
        """Fills in the rows whose chunk predicts prompt tokens that somebody still wants scored."""
        slots = self._slots
        end = np.minimum(base + fed, slots.num_prompt[rows] - 1)
        wanted = (
            slots.sampling.prompt_logprobs[rows] & (kinds != DECODE) & (end > np.maximum(slots.sampling.prompt_done[rows], base))
        )
        picked = np.flatnonzero(wanted).astype(np.int32)
        targets = [slots.tokens[rows[row], base[row] + 1 : end[row] + 1] for row in picked]
        batch.prompt_logprob_rows = picked
        batch.prompt_num_top = slots.sampling.num_top[rows[picked]]
        batch.prompt_target_start = np.cumsum([0, *(len(ids) for ids in targets)]).astype(np.int32)
        batch.prompt_targets = np.concatenate([*targets, np.zeros(0, np.int32)]).astype(np.int32)


def _flatten(rows: I32, *, fed: I32, base: I32) -> tuple[I32, I32, I32]:
    """Query starts [R'+1], then position and slot of each fed token [T]."""
    if (fed == 1).all():
        return np.arange(len(rows) + 1, dtype=np.int32), base, rows
    query_start: I32 = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(fed, out=query_start[1:])
    positions = np.arange(query_start[-1], dtype=np.int32) - np.repeat(query_start[:-1] - base, fed)
    return query_start, positions, np.repeat(rows, fed)
