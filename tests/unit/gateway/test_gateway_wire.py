"""The scheduler's columns to news, entry by entry."""

import pytest

from drumline.common.v1 import common_pb2
from drumline.errors import DeadlineExceeded, DrumlineError, Internal, Unavailable
from drumline.scheduler.v1 import scheduler_pb2 as pb
from gateway.sequences import Delta, Sampling, SequenceSpec
from gateway.wire import news_of, submit_of

SAMPLING = Sampling(0.5, 3, 0.9, 0.1, 1.1, 0.2, -0.2, (1, 2), (1.5, -2.0), 2**64 - 1, 7, 2, (9,), True, True, 4, True)


def test_empty_num_tokens_is_one_each() -> None:
    news = list(news_of(pb.StepTokens(handles=[7, 9], token_ids=[1, 2])))
    assert news == [(7, Delta(-1, [1])), (9, Delta(-1, [2]))]


def test_columns_are_taken_apart() -> None:
    step = pb.StepTokens(
        handles=[1, 2, 3, 4],
        num_tokens=[2, 0, 1, 0],
        token_ids=[5, 6, 7],
        finished_entry=[0, 1, 2, 3],
        finish_reason=[
            common_pb2.FINISH_REASON_LENGTH,
            common_pb2.FINISH_REASON_DEADLINE,
            common_pb2.FINISH_REASON_ERROR,
            common_pb2.FINISH_REASON_ABORTED,
        ],
        errors=[pb.EntryError(entry=2, error=common_pb2.SequenceError(code="internal", message="m"))],
        started_entry=[2],
        num_cached_tokens=[16],
        logprobs=[
            common_pb2.TokenLogprobs(
                row=0, token_ids=[5, 6], logprobs=[-1, float("nan")], top_token_ids=[5, 6], top_logprobs=[-1, -2], num_top=1
            )
        ],
    )
    news = list(news_of(step))
    first, *rest = news
    assert first[1].finish_reason == "length"
    assert [(t.token_id, t.logprob, t.top) for t in first[1].logprobs] == [(5, -1.0, ((5, -1.0),)), (6, -1e4, ((6, -2.0),))]
    kinds = [(handle, type(item)) for handle, item in rest]
    assert kinds == [(2, Delta), (2, DeadlineExceeded), (3, Delta), (3, Internal), (4, Delta), (4, Unavailable)]
    assert rest[2][1] == Delta(-1, [7], num_cached_tokens=16)


def test_every_sampling_field_crosses() -> None:
    spec = SequenceSpec("r", [1, 2], SAMPLING, "t", "s", 5)
    [sent] = submit_of([11], [spec]).submit.sequences
    assert (sent.handle, sent.request_id, list(sent.prompt_token_ids), sent.tenant, sent.cache_salt, sent.timeout_ms) == (
        *(11, "r", [1, 2], "t", "s", 5),
    )
    for field in common_pb2.SamplingParams.DESCRIPTOR.fields:
        ours, theirs = getattr(SAMPLING, field.name), getattr(sent.sampling, field.name)
        assert (list(theirs) if field.is_repeated else theirs) == pytest.approx(list(ours) if field.is_repeated else ours, rel=1e-6)


def test_a_column_of_wrong_length_is_refused() -> None:
    with pytest.raises((ValueError, IndexError)):
        list(news_of(pb.StepTokens(handles=[1], num_tokens=[1], token_ids=[1], started_entry=[0])))
    assert issubclass(Unavailable, DrumlineError)
