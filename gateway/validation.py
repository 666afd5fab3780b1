"""Request bodies to sequences. Everything that can be refused is refused here, before anything is queued."""

import secrets
from dataclasses import dataclass, replace
from typing import Any, Final

from drumline import limits, validation
from drumline.errors import InvalidRequest
from gateway.model import ServedModel
from gateway.schemas import ChatBody, ChatMessage, CompletionBody, GenerationBody
from gateway.sequences import Sampling

_DEFAULT_COMPLETION_TOKENS: Final = 16
"""OpenAI's own default of /v1/completions, for an absent and for a null max_tokens; chat runs to the end of the context."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as it is fed and as `echo` shows it (None = decode the ids)."""

    token_ids: list[int]
    text: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A valid request.

    Attributes:
        prompts: at least one.
        sampling: per prompt, choice 0; choice i has `seed + i`.
        num_choices: per prompt.
        stops, include_stop: stop strings.
        echo: answers begin with the prompt.
    """

    prompts: tuple[Prompt, ...]
    sampling: tuple[Sampling, ...]
    num_choices: int
    stops: tuple[str, ...]
    include_stop: bool
    echo: bool
    cache_salt: str


def choice_sampling(sampling: Sampling, choice: int) -> Sampling:
    """Choice `choice` of a prompt: the same but for its seed, so that choices differ and each can be had alone."""
    return replace(sampling, seed=(sampling.seed + choice) % 2**64)


async def plan_completion(body: CompletionBody, model: ServedModel) -> Plan:
    """Raises InvalidRequest, ContextLengthExceeded or NotFound."""
    _check_body(body, model)
    raw = parse_prompts(body.prompt)
    _check_count(len(raw), body.n or 1)
    prompts = tuple([await _encode(prompt, model) for prompt in raw])
    max_tokens = _DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    score = bool(body.echo) and body.logprobs is not None
    sampling = _sampling(body, max_tokens=max_tokens, logprobs=body.logprobs is not None, top=body.logprobs or 0, score=score)
    return _plan(body, prompts, (sampling,) * len(prompts), model, echo=bool(body.echo))


async def plan_chat(body: ChatBody, model: ServedModel) -> Plan:
    """Raises InvalidRequest, ContextLengthExceeded or NotFound."""
    _check_body(body, model)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise InvalidRequest("max_tokens and max_completion_tokens contradict each other", param="max_tokens")
    prompt = await encode_chat(body.messages, model, add_generation_prompt=body.add_generation_prompt is not False)
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    # A prompt that fills the context leaves no room: ask for one token, so that the refusal below says so.
    max_tokens = max(1, model.info.max_model_len - len(prompt.token_ids)) if asked is None else asked
    sampling = _sampling(body, max_tokens=max_tokens, logprobs=bool(body.logprobs), top=body.top_logprobs or 0, score=False)
    return _plan(body, (prompt,), (sampling,), model, echo=False)


def _plan(
    body: GenerationBody, prompts: tuple[Prompt, ...], sampling: tuple[Sampling, ...], model: ServedModel, *, echo: bool
) -> Plan:
    validation.check_total(sum(len(prompt.token_ids) for prompt in prompts) * (body.n or 1))
    for prompt, params in zip(prompts, sampling, strict=True):
        validation.check_length(len(prompt.token_ids), params.max_tokens, max_model_len=model.info.max_model_len)
        validation.check_sampling(params, vocab_size=model.info.vocab_size)
    return Plan(
        prompts=prompts,
        sampling=sampling,
        num_choices=body.n or 1,
        stops=parse_stops(body.stop),
        include_stop=bool(body.include_stop_str_in_output),
        echo=echo,
        cache_salt=body.cache_salt or "",
    )


def _check_body(body: GenerationBody, model: ServedModel) -> None:
    model.check_name(body.model)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
    parse_stops(body.stop)
    if body.cache_salt is not None:
        validation.check_safe_text("cache_salt", body.cache_salt, limits.MAX_CACHE_SALT_CHARS)


def _check_count(num_prompts: int, num_choices: int) -> None:
    if num_prompts * num_choices > limits.MAX_SEQUENCES_PER_REQUEST:
        raise InvalidRequest(
            f"prompts times n must be at most {limits.MAX_SEQUENCES_PER_REQUEST}, got {num_prompts * num_choices}", param="n"
        )


def parse_prompts(prompt: Any) -> list[str | list[int]]:
    """The four forms of `prompt` as one list. Raises InvalidRequest naming the entry that is wrong."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise InvalidRequest("prompt must be a string, a list of token ids, or a list of either", param="prompt")
    if not prompt:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    if not isinstance(prompt[0], str | list):
        return [_token_ids("prompt", prompt)]
    if len(prompt) > limits.MAX_PROMPTS:
        raise InvalidRequest(f"prompt must have at most {limits.MAX_PROMPTS} entries, got {len(prompt)}", param="prompt")
    return [entry if isinstance(entry, str) else _token_ids(f"prompt[{i}]", entry) for i, entry in enumerate(prompt)]


def _token_ids(name: str, ids: Any) -> list[int]:
    if not isinstance(ids, list):
        raise InvalidRequest(f"{name} must be a string or a list of token ids", param="prompt")
    if not ids:
        raise InvalidRequest(f"{name} must not be empty", param="prompt")
    for index, token in enumerate(ids):
        if type(token) is not int:
            raise InvalidRequest(f"{name}[{index}] must be an integer token id", param="prompt")
    return ids


def parse_stops(stop: Any) -> tuple[str, ...]:
    """One stop string or a list of them. Raises InvalidRequest before looking at more than the limit."""
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list):
        raise InvalidRequest("stop must be a string or a list of strings", param="stop")
    if len(stops) > limits.MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop must have at most {limits.MAX_STOP_STRINGS} strings, got {len(stops)}", param="stop")
    for entry in stops:
        if not isinstance(entry, str) or not 1 <= len(entry) <= limits.MAX_STOP_STRING_CHARS:
            raise InvalidRequest(f"stop strings must have 1 to {limits.MAX_STOP_STRING_CHARS} characters", param="stop")
        check_text("stop", entry)
    return tuple(stops)


def check_text(name: str, text: str) -> None:
    """Refuses lone surrogates: JSON can spell them, but they are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} must be valid Unicode text", param=name.split("[")[0]) from None


async def _encode(prompt: str | list[int], model: ServedModel) -> Prompt:
    if isinstance(prompt, str):
        check_text("prompt", prompt)
        ids = await model.tokenizer.encode(prompt, add_bos=True, max_tokens=model.info.max_model_len)
        return Prompt(ids, prompt)
    if len(prompt) <= model.info.max_model_len:  # a longer one is refused for its length, without reading it
        validation.check_token_ids("prompt", prompt, model.info.vocab_size)
    return Prompt(prompt, None)


async def encode_chat(messages: list[ChatMessage], model: ServedModel, *, add_generation_prompt: bool) -> Prompt:
    """Renders the template and encodes it; the template writes its own BOS token."""
    plain = []
    for index, message in enumerate(messages):
        check_text(f"messages[{index}].content", message.content)
        role = "system" if message.role == "developer" else message.role
        entry = {"role": role, "content": message.content}
        if message.name is not None:
            check_text(f"messages[{index}].name", message.name)
            entry["name"] = message.name
        plain.append(entry)
    text = model.template().render(plain, add_generation_prompt=add_generation_prompt)
    ids = await model.tokenizer.encode(text, add_bos=False, max_tokens=model.info.max_model_len)
    return Prompt(ids, None)


def _sampling(body: GenerationBody, *, max_tokens: int, logprobs: bool, top: int, score: bool) -> Sampling:
    bias = _logit_bias(body.logit_bias or {})
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(0, body.top_k or 0),
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias_ids=tuple(bias),
        logit_bias_values=tuple(bias.values()),
        seed=secrets.randbits(64) if body.seed is None else body.seed % 2**64,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        top_logprobs=top,
        prompt_logprobs=score,
    )


def _logit_bias(bias: dict[str, float]) -> dict[int, float]:
    if len(bias) > limits.MAX_LOGIT_BIAS:
        raise InvalidRequest(f"logit_bias must have at most {limits.MAX_LOGIT_BIAS} entries, got {len(bias)}", param="logit_bias")
    parsed = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise InvalidRequest(f"logit_bias keys must be token ids, got {key[:40]!a}", param="logit_bias")
        parsed[int(key)] = value
    return parsed
