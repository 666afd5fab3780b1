"""What the scheduler checks of a Submit by itself, whatever a gateway has checked."""

import pytest

from drumline import limits
from drumline.common.v1.common_pb2 import SamplingParams
from drumline.errors import InvalidRequest
from drumline.scheduler.v1.scheduler_pb2 import SequenceRequest, Submit
from scheduler_svc.wire import check_submit


def submit(num_sequences: int, *, num_tokens: int) -> Submit:
    sequences = [
        SequenceRequest(handle=handle, prompt_token_ids=[2**21 - 1] * num_tokens, sampling=SamplingParams(max_tokens=1))
        for handle in range(1, num_sequences + 1)
    ]
    return Submit(sequences=sequences)


def test_tokens_of_all_sequences_together_are_bounded() -> None:
    check_submit(submit(4, num_tokens=2**20), vocab_size=2**21, max_model_len=2**21)
    with pytest.raises(InvalidRequest, match="4194304 tokens together"):
        check_submit(submit(5, num_tokens=2**20), vocab_size=2**21, max_model_len=2**21)


def test_the_largest_request_fits_a_message_with_room_to_spare() -> None:
    assert 5 * limits.MAX_PROMPT_TOKENS_PER_REQUEST < limits.MAX_GRPC_MESSAGE_BYTES / 2
