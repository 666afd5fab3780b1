"""Plain data between the HTTP side and the scheduler's client: what a sequence asks for, and what comes back for it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; fields, units and zeros as in `common.proto`'s SamplingParams."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias_ids: tuple[int, ...]
    logit_bias_values: tuple[float, ...]
    seed: int
    max_tokens: int
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    logprobs: bool
    top_logprobs: int
    prompt_logprobs: bool


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """One sequence to submit. `request_id` is for logs only and need not be unique; `timeout_ms` counts from arrival."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: Sampling
    tenant: str
    cache_salt: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's log-probability and its most likely alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Delta:
    """News of one sequence since its reader last looked; several steps merge into one.

    Attributes:
        index: place of the sequence in its Submit.
        token_ids: new tokens.
        logprobs: one per new token when asked for, else empty.
        prompt_logprobs: of prompt tokens 1.., in order.
        num_cached_tokens: prompt tokens found in the prefix cache, once, with the first slot.
        finish_reason: `stop` or `length`, once, at the end.
    """

    index: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    num_cached_tokens: int | None = None
    finish_reason: str | None = None

    def merge(self, later: "Delta") -> None:
        """Appends what came after."""
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.prompt_logprobs += later.prompt_logprobs
        if later.num_cached_tokens is not None:
            self.num_cached_tokens = later.num_cached_tokens
        self.finish_reason = later.finish_reason or self.finish_reason

    def approximate_bytes(self) -> int:
        """Memory that this delta's tokens hold while nobody reads it."""
        num_tops = len(self.logprobs[0].top) if self.logprobs else 0
        return 36 * len(self.token_ids) + (150 + 120 * num_tops) * len(self.logprobs)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the scheduler relays about the served model; fields as in `executor.proto`'s GetModelResponse."""

    digest: str
    name: str
    tokenizer_json: str
    chat_template: str
    bos_token_id: int | None
    add_bos: bool
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """The last answer to GetStatus and when it came (`time.monotonic`, seconds)."""

    at_s: float
    fields: dict[str, object]
    executors: tuple[dict[str, object], ...]

    def num_ready(self) -> int:
        """Executors that may get new rows."""
        return sum(1 for executor in self.executors if executor["state"] == "ready")
