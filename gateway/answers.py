"""Shapes of answers, for OpenAPI and for the small ones; the hot path writes its JSON itself and a test holds it to these."""

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

STREAMED: Final = (
    "With `stream`, server-sent events of chunks, then `data: [DONE]`; an error after the first event is an `error` event."
)
_GENERATING: Final = (400, 401, 404, 408, 413, 429, 431, 499, 500, 503, 504)
_MEANING: Final = {
    400: "The request must be changed; `param` names the field.",
    401: "No API key, or a wrong one.",
    404: "No such model.",
    408: "The body took too long.",
    413: "The body is too large.",
    429: "Too much is waiting; see Retry-After.",
    431: "Too many or too large headers.",
    499: "The client left.",
    500: "A defect of ours.",
    503: "Nobody can serve it now; see Retry-After.",
    504: "The request's time to live passed.",
}


class ErrorDetail(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """Body of every answer that is an error."""

    error: ErrorDetail


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PromptTokensDetails(_Answer):
    """How the prompt was paid for."""

    cached_tokens: int = Field(description="Prompt tokens found in the prefix cache.")


class Usage(_Answer):
    """Tokens really fed and really given."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TextLogprobs(_Answer):
    """Columns, one entry per token; the first prompt token has no score."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


FinishReason = Literal["stop", "length"]


class CompletionChoice(_Answer):
    """One continuation."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None


class Completion(_Answer):
    """A completion, and each event of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(_Answer):
    """A token and its score."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenScore(TopLogprob):
    """The chosen token beside the most likely ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Answer):
    """Scores of a message's tokens."""

    content: list[TokenScore]
    refusal: None


class ChatAnswer(_Answer):
    """The model's turn."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Answer):
    """One turn."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(_Answer):
    """A whole chat answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(_Answer):
    """What an event adds to a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(_Answer):
    """One choice in an event."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(_Answer):
    """An event of a streamed chat answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class ModelCard(_Answer):
    """One served name."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelList(_Answer):
    """All served names."""

    object: Literal["list"]
    data: list[ModelCard]


class Tokenized(_Answer):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(_Answer):
    """Answer of /detokenize."""

    prompt: str


class Health(_Answer):
    """Answer of the probes."""

    status: Literal["ok"]


class Status(BaseModel):
    """Answer of /status; more fields may be added."""

    num_waiting: int
    num_running: int
    num_scheduled: int
    executors: list[dict[str, Any]]


def responses(
    answer: type[BaseModel] | None, *statuses: int, streamed: type[BaseModel] | None = None
) -> dict[int | str, dict[str, Any]]:
    """What a route documents: its answer, its events, and its errors (all that a generating route knows when none is named)."""
    documented: dict[int | str, dict[str, Any]] = {}
    if answer is not None:
        documented[200] = {"model": answer, "description": "Done."}
    if streamed is not None:
        data = {"type": "string", "description": f"A {streamed.__name__} or an ErrorBody in JSON; the last event's is [DONE]."}
        # Before OpenAPI 3.2 the schema of a stream describes each of its events.
        event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
        documented[200]["content"] = {"text/event-stream": {"schema": event}}
    for status in statuses or _GENERATING:
        documented[status] = {"model": ErrorBody, "description": _MEANING[status]}
    return documented
