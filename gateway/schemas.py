"""Request bodies: names, types and ranges, as OpenAPI shows them. `validation` turns them into sequences.

Types are strict (a bool is no number, a number no string). A field that may be null treats null as absent.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from drumline import limits
from drumline.errors import InvalidRequest
from gateway.fields import IGNORED, NEVER, NOT_YET, without_inert

_TOKEN_IDS: dict[str, object] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA: dict[str, object] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": limits.MAX_PROMPTS},
        _TOKEN_IDS,
        {"type": "array", "items": _TOKEN_IDS, "minItems": 1, "maxItems": limits.MAX_PROMPTS},
    ]
}
_STOP_STRING: dict[str, object] = {"type": "string", "minLength": 1, "maxLength": limits.MAX_STOP_STRING_CHARS}
_STOP_SCHEMA: dict[str, object] = {
    "anyOf": [{"type": "null"}, _STOP_STRING, {"type": "array", "items": _STOP_STRING, "maxItems": limits.MAX_STOP_STRINGS}]
}


def _schema_of(model: type[BaseModel], schema: dict[str, Any]) -> None:
    ignored = ", ".join(sorted(IGNORED))
    refused = ", ".join(sorted(NOT_YET | NEVER))
    schema["description"] = f"Ignored: {ignored}. Refused by name: {refused}. Any other unknown field is an error."


def _at_most(num: int) -> BeforeValidator:
    """Refuses a longer list or object unread. Pydantic would first collect an error for each wrong entry: a minute for one body."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > num:
            raise PydanticCustomError(
                "too_long", "must have at most {most} entries, got {given}", {"most": num, "given": len(value)}
            )
        return value

    return BeforeValidator(check)


class Body(BaseModel):
    """Base of all bodies: strict types, unknown fields are errors."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, body: Any) -> Any:
        if isinstance(body, dict) and len(body) > limits.MAX_BODY_FIELDS:
            raise InvalidRequest(f"an object of the body has {len(body)} fields; it may have {limits.MAX_BODY_FIELDS}")
        return body


class GenerationBody(Body):
    """What both ways to generate have in common."""

    model_config = ConfigDict(json_schema_extra=lambda schema, model: _schema_of(model, schema))

    model: str | None = Field(default=None, description="Name of the model; absent = the one that is served.")
    stream: bool | None = Field(default=None, description="Send server-sent events.")
    stream_options: "StreamOptions | None" = None
    n: int | None = Field(default=None, ge=1, le=limits.MAX_CHOICES, description="Choices per prompt; choice i gets seed + i.")
    temperature: float | None = Field(default=None, ge=0, le=limits.MAX_TEMPERATURE, description="0 = greedy. Default 1.")
    top_p: float | None = Field(default=None, gt=0, le=1, description="Default 1.")
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1, description="0 or -1 = all tokens (default).")
    min_p: float | None = Field(default=None, ge=0, le=1, description="Default 0.")
    repetition_penalty: float | None = Field(
        default=None, ge=limits.MIN_REPETITION_PENALTY, le=limits.MAX_REPETITION_PENALTY, description="1 = off (default)."
    )
    presence_penalty: float | None = Field(default=None, ge=-limits.MAX_PENALTY_ABS, le=limits.MAX_PENALTY_ABS)
    frequency_penalty: float | None = Field(default=None, ge=-limits.MAX_PENALTY_ABS, le=limits.MAX_PENALTY_ABS)
    logit_bias: Annotated[dict[str, float] | None, _at_most(limits.MAX_LOGIT_BIAS)] = Field(
        default=None, description="Token id -> shift of its logit, -100..100."
    )
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1, description="Equal seeds give equal text.")
    stop: Annotated[Any, WithJsonSchema(_STOP_SCHEMA)] = Field(default=None, description="Text that ends the answer, not shown.")
    include_stop_str_in_output: bool | None = Field(default=None, description="Show the stop string after all.")
    stop_token_ids: Annotated[list[int] | None, _at_most(limits.MAX_STOP_TOKEN_IDS)] = Field(
        default=None, max_length=limits.MAX_STOP_TOKEN_IDS, description="Tokens that end the answer, beside the model's own."
    )
    min_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1, description="No stop of any kind before this many tokens.")
    ignore_eos: bool | None = Field(default=None, description="Go on after the model's own end tokens.")
    cache_salt: str | None = Field(
        default=None,
        min_length=1,
        max_length=limits.MAX_CACHE_SALT_CHARS,
        pattern=r"^[A-Za-z0-9._:\-]+$",
        description="Only requests with the same salt share cached prefixes.",
    )

    @model_validator(mode="before")
    @classmethod
    def _inert(cls, body: Any) -> Any:
        return without_inert(body)


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool | None = Field(default=None, description="Send usage in a last event with no choices.")
    include_obfuscation: bool | None = Field(default=None, description="Ignored: nothing is obfuscated.")


class CompletionBody(GenerationBody):
    """Body of /v1/completions."""

    prompt: Annotated[Any, WithJsonSchema(_PROMPT_SCHEMA)] = Field(description="A text, token ids, or a list of either.")
    max_tokens: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="Default 16, as OpenAI's. 0 only scores the prompt."
    )
    echo: bool | None = Field(default=None, description="Begin the answer with the prompt; with logprobs, score it too.")
    logprobs: int | None = Field(default=None, ge=0, le=limits.MAX_TOP_LOGPROBS, description="Alternatives per token.")


def _joined(content: Any) -> Any:
    """A list of text parts is their text; anything else is left for the type to refuse."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) != len(content) or not all(isinstance(text, str) for text in texts):
        raise ValueError("only text parts are supported")
    return "".join(text for text in texts if isinstance(text, str))


_PART: dict[str, object] = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT_SCHEMA: dict[str, object] = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}


class ChatMessage(Body):
    """One message. `developer` is a `system` message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined), WithJsonSchema(_CONTENT_SCHEMA)]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _inert(cls, body: Any) -> Any:
        return without_inert(body)


class ChatBody(GenerationBody):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], _at_most(limits.MAX_MESSAGES)] = Field(
        min_length=1, max_length=limits.MAX_MESSAGES, fail_fast=True
    )
    max_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1, description="Default: up to the end of the context.")
    max_completion_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1, description="Newer name of max_tokens.")
    logprobs: bool | None = Field(default=None, description="Report log-probabilities.")
    top_logprobs: int | None = Field(default=None, ge=0, le=limits.MAX_TOP_LOGPROBS, description="Needs logprobs.")
    add_generation_prompt: bool | None = Field(default=None, description="Open the assistant's turn. Default true.")


class TokenizeBody(Body):
    """Body of /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = Field(default=None, max_length=limits.MAX_TOKENIZE_CHARS)
    messages: Annotated[list[ChatMessage] | None, _at_most(limits.MAX_MESSAGES)] = Field(
        default=None, min_length=1, max_length=limits.MAX_MESSAGES, fail_fast=True
    )
    add_special_tokens: bool = Field(default=True, description="Put the model's BOS token in front of a prompt, if it wants one.")
    add_generation_prompt: bool = Field(default=True, description="Open the assistant's turn after messages.")
    return_token_strs: bool | None = Field(default=None, description="Return each token's text too.")


class DetokenizeBody(Body):
    """Body of /detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], _at_most(limits.MAX_DETOKENIZE_TOKENS)] = Field(
        max_length=limits.MAX_DETOKENIZE_TOKENS, fail_fast=True
    )
