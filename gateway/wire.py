"""Translation between the gateway's plain data and the scheduler's messages. Nothing else here touches either."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from drumline.common.v1 import common_pb2
from drumline.errors import Cancelled, DeadlineExceeded, DrumlineError, Internal, Unavailable, from_code
from drumline.scheduler.v1 import scheduler_pb2 as pb
from gateway.sequences import Delta, ModelInfo, Sampling, SchedulerStatus, SequenceSpec, TokenLogprob

_FLOOR: Final = -1e4
"""The wire promises finite log-probabilities; a peer that breaks the promise still gives valid JSON."""
_FINISH: Final = {common_pb2.FINISH_REASON_STOP: "stop", common_pb2.FINISH_REASON_LENGTH: "length"}

News = tuple[int, Delta | DrumlineError]
"""A handle and what came for it."""


def submit_of(handles: Sequence[int], specs: Sequence[SequenceSpec]) -> pb.ServeRequest:
    """One Submit of all `specs`, named by `handles` in order."""
    sequences = [
        pb.SequenceRequest(
            handle=handle,
            request_id=spec.request_id,
            prompt_token_ids=spec.prompt_token_ids,
            sampling=_sampling_of(spec.sampling),
            tenant=spec.tenant,
            cache_salt=spec.cache_salt,
            timeout_ms=spec.timeout_ms,
        )
        for handle, spec in zip(handles, specs, strict=True)
    ]
    return pb.ServeRequest(submit=pb.Submit(sequences=sequences))


def _sampling_of(sampling: Sampling) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(**{name: getattr(sampling, name) for name in Sampling.__dataclass_fields__})


def news_of(step: pb.StepTokens) -> Iterator[News]:
    """Every entry's news, in entry order; an entry that failed gives its tokens first, then its error."""
    deltas = _tokens_of(step)
    for entry, cached in zip(step.started_entry, step.num_cached_tokens, strict=True):
        deltas[entry].num_cached_tokens = cached
    for run in step.logprobs:
        deltas[run.row].logprobs += _logprobs_of(run)
    for run in step.prompt_logprobs:
        deltas[run.row].prompt_logprobs += _logprobs_of(run)
    failed: dict[int, DrumlineError] = {}
    if step.finished_entry:
        failed = _finish(step, deltas)
    for entry, handle in enumerate(step.handles):
        yield handle, deltas[entry]
        if entry in failed:
            yield handle, failed[entry]


def _tokens_of(step: pb.StepTokens) -> list[Delta]:
    ids = step.token_ids
    if not step.num_tokens:
        return [Delta(-1, [token]) for token in ids]
    deltas = []
    start = 0
    for count in step.num_tokens:
        deltas.append(Delta(-1, list(ids[start : start + count])))
        start += count
    return deltas


def _finish(step: pb.StepTokens, deltas: list[Delta]) -> dict[int, DrumlineError]:
    named = {error.entry: from_code(error.error.code, error.error.message) for error in step.errors}
    failed: dict[int, DrumlineError] = {}
    for entry, reason in zip(step.finished_entry, step.finish_reason, strict=True):
        if reason in _FINISH:
            deltas[entry].finish_reason = _FINISH[reason]
        elif entry in named:
            error = named[entry]
            # Only our own client's leaving is a cancellation here; what the scheduler withdraws is an error to the client.
            failed[entry] = Unavailable(error.message) if isinstance(error, Cancelled) else error
        elif reason == common_pb2.FINISH_REASON_DEADLINE:
            failed[entry] = DeadlineExceeded("the request's time to live passed")
        elif reason == common_pb2.FINISH_REASON_ABORTED:
            failed[entry] = Unavailable("the scheduler withdrew the sequence")
        else:
            failed[entry] = Internal("the sequence failed")
    return failed


def _logprobs_of(run: common_pb2.TokenLogprobs) -> list[TokenLogprob]:
    width = run.num_top
    tops = list(zip(run.top_token_ids, map(_finite, run.top_logprobs), strict=True))
    return [
        TokenLogprob(token, _finite(value), tuple(tops[i * width : (i + 1) * width]))
        for i, (token, value) in enumerate(zip(run.token_ids, run.logprobs, strict=True))
    ]


def _finite(value: float) -> float:
    return max(value, _FLOOR) if math.isfinite(value) else _FLOOR


def model_info_of(response: pb.GetModelResponse) -> ModelInfo:
    """The served model. Raises Unavailable when the answer carries no tokenizer."""
    model = response.model
    if not model.tokenizer_json:
        raise Unavailable("the executor serves no tokenizer")
    return ModelInfo(
        digest=model.model_digest,
        name=model.model_name,
        tokenizer_json=model.tokenizer_json.decode("utf-8"),
        chat_template=model.chat_template,
        bos_token_id=model.bos_token_id if model.HasField("bos_token_id") else None,
        add_bos=model.add_bos,
        eos_token_ids=tuple(model.eos_token_ids),
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
    )


def status_of(response: pb.GetStatusResponse, *, at_s: float) -> SchedulerStatus:
    """The status as plain numbers, strings and dicts; an absent `idle_fraction` is None."""
    fields = _plain(response)
    fields.pop("executors")
    return SchedulerStatus(at_s=at_s, fields=fields, executors=tuple(_plain(executor) for executor in response.executors))


def _plain(message: Any) -> dict[str, object]:
    return {
        field.name: None if field.has_presence and not message.HasField(field.name) else getattr(message, field.name)
        for field in message.DESCRIPTOR.fields
    }
