"""One validation module, called by gateway, scheduler and executor: the same limit at every way in.

Functions take anything with the attributes of `drumline.common.v1.SamplingParams` (the message itself, or plain data) and raise
`InvalidRequest` naming the field and the limit. They cost nothing that grows beyond the limits themselves.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from drumline import limits
from drumline.errors import ContextLengthExceeded, InvalidRequest

_SAFE_ID = re.compile(r"[A-Za-z0-9._:\-]*")


class Sampling(Protocol):
    """The fields that are checked; see `common.proto` for their meaning."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def logit_bias_ids(self) -> Sequence[int]: ...
    @property
    def logit_bias_values(self) -> Sequence[float]: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def stop_token_ids(self) -> Sequence[int]: ...
    @property
    def top_logprobs(self) -> int: ...
    @property
    def prompt_logprobs(self) -> bool: ...


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Refuses NaN, infinities and anything outside [low, high]."""
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low:g} and {high:g}, got {value:g}", param=name)


def check_token_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    """Refuses the first id outside 0..vocab_size-1, naming it."""
    for index, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise InvalidRequest(f"{name}[{index}] is {token}; token ids are 0 to {vocab_size - 1}", param=name)


def check_safe_text(name: str, value: str, max_chars: int) -> None:
    """Ids and salts: letters, digits and `._:-`, at most `max_chars`."""
    if len(value) > max_chars or not _SAFE_ID.fullmatch(value):
        raise InvalidRequest(f"{name} must be at most {max_chars} characters out of A-Z a-z 0-9 . _ : -", param=name)


def check_sampling(params: Sampling, *, vocab_size: int) -> None:
    """All limits of sampling parameters. A zero is "not set" where `common.proto` says so."""
    check_range("temperature", params.temperature, 0.0, limits.MAX_TEMPERATURE)
    check_range("top_k", params.top_k, 0, 2**31 - 1)
    check_range("top_p", params.top_p, 0.0, 1.0)
    check_range("min_p", params.min_p, 0.0, 1.0)
    if params.repetition_penalty:
        check_range("repetition_penalty", params.repetition_penalty, limits.MIN_REPETITION_PENALTY, limits.MAX_REPETITION_PENALTY)
    check_range("presence_penalty", params.presence_penalty, -limits.MAX_PENALTY_ABS, limits.MAX_PENALTY_ABS)
    check_range("frequency_penalty", params.frequency_penalty, -limits.MAX_PENALTY_ABS, limits.MAX_PENALTY_ABS)
    check_range("top_logprobs", params.top_logprobs, 0, limits.MAX_TOP_LOGPROBS)
    check_range("logit_bias", len(params.logit_bias_ids), 0, limits.MAX_LOGIT_BIAS)
    if len(params.logit_bias_ids) != len(params.logit_bias_values):
        raise InvalidRequest("logit_bias must have one value per token id", param="logit_bias")
    check_token_ids("logit_bias", params.logit_bias_ids, vocab_size)
    for value in params.logit_bias_values:
        check_range("logit_bias", value, -limits.MAX_LOGIT_BIAS_ABS, limits.MAX_LOGIT_BIAS_ABS)
    check_range("stop_token_ids", len(params.stop_token_ids), 0, limits.MAX_STOP_TOKEN_IDS)
    check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    if params.max_tokens == 0 and not params.prompt_logprobs:
        raise InvalidRequest(
            "max_tokens must be at least 1, unless the prompt is only scored (echo with logprobs)", param="max_tokens"
        )
    if params.min_tokens > params.max_tokens:
        raise InvalidRequest(f"min_tokens must be between 0 and max_tokens ({params.max_tokens})", param="min_tokens")


def check_total(num_prompt_tokens: int) -> None:
    """Prompt tokens of all sequences of one request: a larger message would break the stream that all requests share."""
    if num_prompt_tokens > limits.MAX_PROMPT_TOKENS_PER_REQUEST:
        raise InvalidRequest(
            f"prompts times n must have at most {limits.MAX_PROMPT_TOKENS_PER_REQUEST} tokens together, got {num_prompt_tokens}",
            param="prompt",
        )


def check_length(num_prompt_tokens: int, max_tokens: int, *, max_model_len: int) -> None:
    """Prompt and output must fit the model's context together."""
    if num_prompt_tokens < 1:
        raise InvalidRequest("prompt must have at least one token", param="prompt")
    if num_prompt_tokens + max_tokens > max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{num_prompt_tokens + max_tokens} tokens ({num_prompt_tokens} in the prompt, {max_tokens} in the completion)."
            " Shorten the prompt or lower max_tokens.",
            param="max_tokens" if num_prompt_tokens < max_model_len else "prompt",
        )
