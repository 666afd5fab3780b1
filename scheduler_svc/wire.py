"""Translation between the wire and the core's plain data; engine and replay use the same functions.

Columns are handed over whole: a column of a message goes to another message as it is (protobuf copies its memory, 2 us for 256
rows against 13 us by way of a list), and becomes an array without a list between. Who got one reads it and never changes it.
Opaque values of the core are messages here: `sampling` is a SamplingParams, log-probabilities are TokenLogprobs.
"""

from collections.abc import Iterable, MutableSequence, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar, cast

import numpy as np

from drumline import limits, validation
from drumline.common.v1.common_pb2 import FinishReason as PbFinishReason
from drumline.common.v1.common_pb2 import SamplingParams, SequenceError, TokenLogprobs
from drumline.errors import DrumlineError, InvalidRequest
from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from drumline.plan.v1 import plan_pb2
from drumline.scheduler.v1.scheduler_pb2 import Admission, EntryError, ServeResponse, StepTokens, Submit
from scheduler_svc.core.types import ExecutorInfo, FinishReason, Layout, Outputs, Plan, Refusal, Request, StepResult

T = TypeVar("T")
_REASONS = {int(reason): reason for reason in FinishReason}
_LAYOUTS = {int(layout): layout for layout in Layout}


class StepTimes(NamedTuple):
    """Where a step's time went on the executor, ns: waiting behind earlier plans, working, and idle before the plan arrived."""

    queue_ns: int
    device_ns: int
    idle_ns: int


def executor_info(executor_id: int, caps: GetCapabilitiesResponse) -> ExecutorInfo:
    """An executor as the core knows it. Layouts that this release does not know are left out."""
    return ExecutorInfo(
        executor_id=executor_id,
        model_digest=caps.model_digest,
        block_size=caps.block_size,
        num_blocks=caps.num_blocks,
        max_model_len=caps.max_model_len,
        max_num_seqs=caps.max_num_seqs,
        max_num_batched_tokens=caps.max_num_batched_tokens,
        layouts=tuple(_LAYOUTS[layout] for layout in caps.layouts if layout in _LAYOUTS),
        ragged_granted=caps.ragged.granted,
        ragged_reason=caps.ragged.reason or "the executor declared nothing, which is a refusal",
        mtp_depth=caps.mtp_depth,
    )


def check_submit(submit: Submit, *, vocab_size: int, max_model_len: int) -> None:
    """All limits of a Submit; raises InvalidRequest naming the first field that is wrong."""
    validation.check_range("sequences", len(submit.sequences), 1, limits.MAX_SEQUENCES_PER_REQUEST)
    validation.check_total(sum(len(sequence.prompt_token_ids) for sequence in submit.sequences))
    for sequence in submit.sequences:
        prompt = sequence.prompt_token_ids
        validation.check_length(len(prompt), sequence.sampling.max_tokens, max_model_len=max_model_len)
        if max(prompt) >= vocab_size:  # ids are unsigned on the wire; only a bad prompt pays for the loop that names the id
            validation.check_token_ids("prompt", prompt, vocab_size)
        validation.check_sampling(sequence.sampling, vocab_size=vocab_size)
        validation.check_safe_text("request_id", sequence.request_id, limits.MAX_REQUEST_ID_CHARS)
        validation.check_safe_text("tenant", sequence.tenant, limits.MAX_TENANT_CHARS)
        validation.check_safe_text("cache_salt", sequence.cache_salt, limits.MAX_CACHE_SALT_CHARS)
        validation.check_range("timeout", sequence.timeout_ms, 0, limits.MAX_TIMEOUT_MS)
    handles = [sequence.handle for sequence in submit.sequences]
    if len(set(handles)) != len(handles):
        raise InvalidRequest("handle must be unique in a session", param="handle")


def requests_of(submit: Submit, *, first_key: int, arrival_ns: int, default_timeout_ms: int) -> list[Request]:
    """The core's requests, keys rising from `first_key` in the Submit's order. Deadlines count from `arrival_ns`."""
    return [
        Request(
            key=first_key + index,
            request_id=sequence.request_id,
            prompt=sequence.prompt_token_ids[:],
            max_tokens=sequence.sampling.max_tokens,
            sampling=sequence.sampling,
            prompt_logprobs=sequence.sampling.prompt_logprobs,
            tenant=sequence.tenant,
            cache_salt=sequence.cache_salt,
            arrival_ns=arrival_ns,
            deadline_ns=arrival_ns + (sequence.timeout_ms or default_timeout_ms) * 1_000_000,
        )
        for index, sequence in enumerate(submit.sequences)
    ]


def result_of(result: plan_pb2.StepResult) -> StepResult:
    """A result as the core reads it. Raises ValueError for columns that do not belong together or unknown reasons."""
    columns = StepResult(
        step_id=result.step_id,
        token_ids=result.token_ids,
        lengths=np.asarray(result.length, np.int64),
        num_blocks_in_use=result.num_blocks_in_use,
        device_ns=times_of(result).device_ns,
        draft_ns=result.timing.draft_ns,
    )
    if _has_rare_columns(result):
        columns.num_emitted = result.num_emitted[:]
        columns.num_drafted = result.num_drafted[:]
        columns.finished = [(row, _REASONS[reason]) for row, reason in zip(result.finished_row, result.finish_reason, strict=True)]
        columns.skipped = result.skipped_row[:]
        columns.errors = [(error.row, error.error.code, error.error.message) for error in result.row_errors]
        columns.logprobs = {entry.row: entry for entry in result.logprobs}
        columns.prompt_logprobs = {entry.row: entry for entry in result.prompt_logprobs}
    return columns


def _has_rare_columns(result: plan_pb2.StepResult) -> bool:
    """Whether a result says more than one token of every row, as those of steady decode do not."""
    ends = result.finished_row or result.finish_reason or result.skipped_row or result.row_errors
    return bool(ends or result.num_emitted or result.num_drafted or result.logprobs or result.prompt_logprobs)


def times_of(result: plan_pb2.StepResult) -> StepTimes:
    """The executor's own account of a step."""
    timing = result.timing
    device_ns = timing.assemble_ns + timing.draft_ns + timing.forward_ns + timing.sample_ns
    return StepTimes(timing.queue_ns, device_ns, timing.idle_ns)


def plan_to_wire(plan: Plan, *, session_epoch: int) -> plan_pb2.StepPlan:
    """A plan as it travels; equal plans give equal bytes."""
    wire = plan_pb2.StepPlan()
    fill_plan(wire, plan, session_epoch=session_epoch)
    return wire


def fill_plan(wire: plan_pb2.StepPlan, plan: Plan, *, session_epoch: int) -> None:
    """`plan_to_wire` into an empty message where it lies: a message given to another's constructor is copied."""
    wire.step_id = plan.step_id
    wire.session_epoch = session_epoch
    wire.grant_id = plan.grant_id
    wire.cohort_id = plan.cohort_id
    wire.based_on_result_step = plan.based_on_result_step
    wire.cache_op = cast(plan_pb2.CacheOp.ValueType, plan.cache_op)
    wire.layout = cast(plan_pb2.Layout.ValueType, plan.layout)
    wire.advance = cast(plan_pb2.Advance.ValueType, plan.advance)
    wire.repeat_rows = plan.repeat_rows
    wire.want_digests = plan.want_digests
    if plan.block_rows:
        wire.block_row.extend(plan.block_rows)
        wire.block_id.extend(plan.block_ids)
    if not plan.repeat_rows:
        wire.slot.extend(plan.slots)
        wire.row_kind.extend(cast(list[plan_pb2.RowKind.ValueType], plan.row_kinds))
        wire.num_tokens.extend(plan.num_tokens)
        wire.start.extend(plan.starts)
        wire.draft_len.extend(plan.draft_len)
    if plan.freed_slots or plan.aborted_slots:
        wire.freed_slots.extend(plan.freed_slots)
        wire.aborted_slots.extend(plan.aborted_slots)
    if plan.copy_src:
        wire.copy_src.extend(plan.copy_src)
        wire.copy_dst.extend(plan.copy_dst)
    for new in plan.new_sequences:
        wire.new_sequences.add(
            slot=new.slot,
            token_ids=new.token_ids,
            num_prompt_tokens=new.num_prompt_tokens,
            num_cached_tokens=new.num_cached_tokens,
            sampling=cast(SamplingParams, new.sampling),
            num_prompt_logprobs_done=new.num_prompt_logprobs_done,
        )


def step_tokens(outputs: Outputs, *, handles: Sequence[int], entries: Sequence[int] | None = None) -> ServeResponse:
    """News for one gateway. `entries` are the indices of `outputs.keys` that are its own, beside their `handles`; None = all."""
    response = ServeResponse()
    tokens = response.tokens
    tokens.SetInParent()
    tokens.handles.extend(handles)
    if entries is None:
        tokens.num_tokens.extend(outputs.num_tokens)
        tokens.token_ids.extend(outputs.token_ids)
        place: dict[int, int] | range = range(len(handles))
    else:
        _select(tokens, outputs, entries)
        place = {entry: index for index, entry in enumerate(entries)}
    if outputs.finished or outputs.started or outputs.logprobs or outputs.prompt_logprobs:
        _add_rare(tokens, outputs, place)
    return response


def _add_rare(tokens: StepTokens, outputs: Outputs, place: dict[int, int] | range) -> None:
    """What a step in steady decode has none of; errors come with `finished`."""
    for entry, reason in _placed(outputs.finished, place):
        tokens.finished_entry.append(entry)
        tokens.finish_reason.append(cast(PbFinishReason.ValueType, int(reason)))
    for old, code, message in outputs.errors:
        if old in place:
            tokens.errors.append(EntryError(entry=place[old], error=SequenceError(code=code, message=message)))
    for entry, num_cached in _placed(outputs.started, place):
        tokens.started_entry.append(entry)
        tokens.num_cached_tokens.append(num_cached)
    for entry, value in _placed(outputs.logprobs.items(), place):
        _add_logprobs(tokens.logprobs, entry, value)
    for entry, value in _placed(outputs.prompt_logprobs.items(), place):
        _add_logprobs(tokens.prompt_logprobs, entry, value)


def handle_column(handles: Sequence[int]) -> Sequence[int]:
    """The same numbers in the form that `step_tokens` takes fastest; for handles that many steps name."""
    column: Sequence[int] = StepTokens(handles=handles).handles
    return column


def _placed(pairs: Iterable[tuple[int, T]], place: dict[int, int] | range) -> Iterable[tuple[int, T]]:
    """The pairs that belong to this gateway, by its own entry numbers."""
    return ((place[entry], value) for entry, value in pairs if entry in place)


def _select(tokens: StepTokens, outputs: Outputs, entries: Sequence[int]) -> None:
    """Fills in the token columns of some entries of a step that several gateways share."""
    if not outputs.num_tokens:
        tokens.token_ids.extend([outputs.token_ids[entry] for entry in entries])
        return
    starts = [0, *accumulate(outputs.num_tokens)]
    tokens.num_tokens.extend([outputs.num_tokens[entry] for entry in entries])
    for entry in entries:
        tokens.token_ids.extend(outputs.token_ids[starts[entry] : starts[entry + 1]])


def admission(handles: Sequence[int], refusal: Refusal | None = None) -> ServeResponse:
    """The answer to a Submit."""
    if refusal is None:
        return ServeResponse(admission=Admission(handles=handles))
    error = SequenceError(code=refusal.code, message=refusal.message)
    return ServeResponse(admission=Admission(handles=handles, refused=error, retry_after_s=refusal.retry_after_s))


def ended(handles: Sequence[int], error: DrumlineError) -> ServeResponse:
    """Ends sequences with one error, outside any step."""
    outputs = Outputs(
        keys=handles,
        num_tokens=[0] * len(handles),
        finished=[(entry, FinishReason.ERROR) for entry in range(len(handles))],
        errors=[(entry, error.code, error.message) for entry in range(len(handles))],
    )
    return step_tokens(outputs, handles=handles)


def refusal_of(error: DrumlineError) -> Refusal:
    """A refusal that says what an error says."""
    return Refusal(code=error.code, message=error.message, retry_after_s=error.retry_after_s or 0)


def _add_logprobs(column: MutableSequence[TokenLogprobs], entry: int, value: object) -> None:
    copied = TokenLogprobs()
    copied.CopyFrom(cast(TokenLogprobs, value))
    copied.row = entry
    column.append(copied)
