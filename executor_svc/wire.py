"""The wire's messages to the executor's plain data and back; nothing else in this service reads or builds a plan message.

A plan whose columns contradict each other cannot be applied as a whole and raises PlanRejected; what is wrong with one sequence or
one row passes through and becomes that row's error. Integers beyond 31 bits saturate: every check behind refuses the largest one.
"""

from collections.abc import Collection, Mapping
from typing import Final, cast

import numpy as np

from drumline.common.v1.common_pb2 import FinishReason, SamplingParams, SequenceError, TokenLogprobs
from drumline.errors import PlanRejected
from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse, GetModelResponse, RaggedDeclaration
from drumline.plan.v1 import plan_pb2 as pb
from drumline.version import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION, SOFTWARE_VERSION
from executor_svc.backends.base import BackendInfo, ModelInfo
from executor_svc.plan import I32, PAGED, Logprobs, NewSequence, Plan, Sampling, StepResult

_MAX: Final = 2**31 - 1


def plan_of(message: pb.StepPlan, *, max_num_seqs: int, layouts: Collection[int] = (PAGED,), mtp_depth: int = 0) -> Plan:
    """A plan as arrays. Raises PlanRejected for a plan that makes no sense as a whole.

    `layouts`: those served here. `mtp_depth`: most drafts of a row.
    """
    _check_layout(message, layouts=layouts)
    _check_columns(message, max_num_seqs=max_num_seqs, mtp_depth=mtp_depth)
    return Plan(
        step_id=message.step_id,
        session_epoch=message.session_epoch,
        grant_id=message.grant_id,
        cohort_id=message.cohort_id,
        cache_op=message.cache_op,
        layout=message.layout,
        advance=message.advance,
        freed_slots=list(message.freed_slots),
        aborted_slots=list(message.aborted_slots),
        new_sequences=[_sequence_of(new) for new in message.new_sequences],
        repeat_rows=message.repeat_rows,
        slots=_i32(message.slot),
        row_kinds=_i32(message.row_kind),
        num_tokens=_i32(message.num_tokens),
        starts=_i32(message.start),
        block_rows=_i32(message.block_row),
        block_ids=_i32(message.block_id),
        copy_src=_i32(message.copy_src),
        copy_dst=_i32(message.copy_dst),
        draft_len=_i32(message.draft_len),
        want_digests=message.want_digests,
    )


def _check_layout(message: pb.StepPlan, *, layouts: Collection[int]) -> None:
    if message.layout not in layouts:
        served = ", ".join(pb.Layout.Name(cast(pb.Layout.ValueType, layout)) for layout in layouts)
        raise PlanRejected(f"layout {message.layout} is not served; this executor serves {served}")
    if message.layout == pb.LAYOUT_PAGED and message.cache_op != pb.CACHE_OP_NOTHING:
        raise PlanRejected(f"cache_op {message.cache_op} contradicts LAYOUT_PAGED, which is always CACHE_OP_NOTHING")
    if message.cache_op not in (pb.CACHE_OP_NOTHING, pb.CACHE_OP_IN, pb.CACHE_OP_RESET):
        raise PlanRejected(f"cache_op {message.cache_op} is not known")


def _check_columns(message: pb.StepPlan, *, max_num_seqs: int, mtp_depth: int) -> None:
    size = len(message.slot)
    if message.advance not in (pb.ADVANCE_COHORT, pb.ADVANCE_PER_SEQUENCE):
        raise PlanRejected(f"advance {message.advance} is not known")
    if size > max_num_seqs or len(message.new_sequences) > max_num_seqs:
        raise PlanRejected(f"the plan has more rows or new sequences than max_num_seqs, {max_num_seqs}")
    if message.repeat_rows and (size or message.row_kind or message.num_tokens or message.start or message.draft_len):
        raise PlanRejected("repeat_rows with row columns")
    for name, column in (("row_kind", message.row_kind), ("num_tokens", message.num_tokens), ("start", message.start)):
        if len(column) != size:
            raise PlanRejected(f"{name} has {len(column)} entries, slot has {size}")
    if message.draft_len and len(message.draft_len) != size:
        raise PlanRejected(f"draft_len has {len(message.draft_len)} entries, slot has {size}")
    if (longest := max(message.draft_len, default=0)) > mtp_depth:
        raise PlanRejected(f"draft_len names {longest} drafts; this executor's mtp_depth is {mtp_depth}")
    if longest and message.layout != pb.LAYOUT_PAGED:
        raise PlanRejected("draft_len names drafts; they are verified in LAYOUT_PAGED only")
    if len(message.block_row) != len(message.block_id):
        raise PlanRejected(f"block_row has {len(message.block_row)} entries, block_id has {len(message.block_id)}")
    if len(message.copy_src) != len(message.copy_dst):
        raise PlanRejected(f"copy_src has {len(message.copy_src)} entries, copy_dst has {len(message.copy_dst)}")


def _sequence_of(new: pb.NewSequence) -> NewSequence:
    return NewSequence(
        slot=new.slot,
        token_ids=_i32(new.token_ids),
        num_prompt_tokens=new.num_prompt_tokens,
        num_cached_tokens=new.num_cached_tokens,
        sampling=_sampling_of(new.sampling),
        num_prompt_logprobs_done=new.num_prompt_logprobs_done,
    )


def _sampling_of(params: SamplingParams) -> Sampling:
    """Zeros that mean "not set" become what they stand for."""
    return Sampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p or 1.0,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty or 1.0,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        bias_ids=tuple(params.logit_bias_ids),
        bias_values=tuple(params.logit_bias_values),
        seed=params.seed,
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        stop_token_ids=tuple(params.stop_token_ids),
        ignore_eos=params.ignore_eos,
        logprobs=params.logprobs,
        top_logprobs=params.top_logprobs,
        prompt_logprobs=params.prompt_logprobs,
    )


def _i32(column: Collection[int]) -> I32:
    if not column:
        return np.zeros(0, np.int32)
    return np.minimum(np.array(column, np.int64), _MAX).astype(np.int32)


def result_to_wire(result: StepResult) -> pb.StepResult:
    """A result as the message; columns that say the usual are left empty."""
    message = pb.StepResult(
        step_id=result.step_id,
        session_epoch=result.session_epoch,
        num_emitted=() if (result.num_emitted == 1).all() else result.num_emitted.tolist(),
        token_ids=result.token_ids.tolist(),
        length=result.lengths.tolist(),
        num_accepted=result.num_accepted.tolist(),
        num_drafted=result.num_drafted.tolist(),
        finished_row=[row for row, _ in result.finished],
        finish_reason=[cast(FinishReason.ValueType, reason) for _, reason in result.finished],
        skipped_row=result.skipped,
        row_errors=[pb.RowError(row=row, error=SequenceError(code=code, message=words)) for row, code, words in result.row_errors],
        logprobs=_logprobs(result.logprobs),
        prompt_logprobs=_logprobs(result.prompt_logprobs),
        digest=result.digest.tolist(),
        num_blocks_in_use=result.num_blocks_in_use,
        lead_pad=result.lead_pad.tolist(),
        advance=cast(pb.Advance.ValueType, result.advance),
        timing=pb.StepTiming(
            queue_ns=result.queue_ns,
            assemble_ns=result.assemble_ns,
            draft_ns=result.draft_ns,
            forward_ns=result.forward_ns,
            sample_ns=result.sample_ns,
            idle_ns=result.idle_ns,
        ),
    )
    copies = result.copies
    if result.num_copied_on_write or copies.cache_in or copies.strip or copies.needless_in:
        message.copies.copy_on_write = result.num_copied_on_write
        message.copies.cache_in, message.copies.strip = copies.cache_in, copies.strip
        message.copies.needless_in = copies.needless_in
    return message


def _logprobs(scores: Mapping[int, Logprobs]) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(
            row=row,
            token_ids=score.token_ids.tolist(),
            logprobs=score.logprobs.tolist(),
            top_token_ids=score.top_token_ids.ravel().tolist(),
            top_logprobs=score.top_logprobs.ravel().tolist(),
            num_top=score.top_token_ids.shape[1] if score.top_token_ids.ndim == 2 else 0,
        )
        for row, score in scores.items()
    ]


def capabilities(model: ModelInfo, info: BackendInfo, *, instance_id: str) -> GetCapabilitiesResponse:
    """What this executor is and can do."""
    return GetCapabilitiesResponse(
        protocol_version=PROTOCOL_VERSION,
        min_protocol_version=MIN_PROTOCOL_VERSION,
        software_version=SOFTWARE_VERSION,
        instance_id=instance_id,
        model_digest=model.model_digest,
        model_name=model.model_name,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        max_model_len=model.max_model_len,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        vocab_size=model.vocab_size,
        layouts=[cast(pb.Layout.ValueType, layout) for layout in info.layouts],
        device=info.device,
        kernels=info.kernels,
        precision=info.precision,
        batch_invariant=info.batch_invariant,
        ragged=RaggedDeclaration(granted=info.ragged_granted, reason=info.ragged_reason),
        world_size=1,
        kv_cache_dtype=info.kv_cache_dtype,
        mtp_depth=info.mtp_depth,
        drafter=info.drafter,
    )


def model_to_wire(model: ModelInfo) -> GetModelResponse:
    """Everything that a gateway needs of the model."""
    return GetModelResponse(
        model_digest=model.model_digest,
        model_name=model.model_name,
        tokenizer_json=model.tokenizer_json,
        chat_template=model.chat_template,
        bos_token_id=model.bos_token_id,
        add_bos=model.add_bos,
        eos_token_ids=model.eos_token_ids,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
    )
