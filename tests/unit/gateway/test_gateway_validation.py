"""Bodies to plans: defaults, forms and exact words."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from drumline.errors import ContextLengthExceeded, InvalidRequest
from drumline.settings import SettingsError
from gateway.config import GatewaySettings
from gateway.fields import IGNORED, NEVER, NOT_YET, without_inert
from gateway.model import ServedModel
from gateway.schemas import Body, ChatBody, ChatMessage, CompletionBody, DetokenizeBody, GenerationBody, StreamOptions, TokenizeBody
from gateway.sequences import ModelInfo
from gateway.validation import choice_sampling, parse_prompts, parse_stops, plan_chat, plan_completion
from tests.support.scripted_scheduler import TEMPLATE, small_tokenizer

TOKENIZER = small_tokenizer()
INFO = ModelInfo("d", "m", TOKENIZER.to_str(), TEMPLATE, 1, False, (2,), 64, TOKENIZER.get_vocab_size())


@pytest.fixture(scope="module")
def model() -> ServedModel:
    with ThreadPoolExecutor(1) as pool:
        return ServedModel(INFO, names=(), pool=pool)


def refused_or(parse: Callable[[], Any], param: str) -> Any:
    """The result, or None for a refusal that names `param`."""
    try:
        return parse()
    except InvalidRequest as error:
        if error.param != param:
            raise
        return None


def test_lists_of_fields_do_not_overlap_the_schemas() -> None:
    known = set(CompletionBody.model_fields) | set(ChatBody.model_fields)
    assert not known & (IGNORED | NOT_YET | NEVER)
    assert not IGNORED & NOT_YET
    assert not NEVER & (IGNORED | NOT_YET)


@pytest.mark.parametrize("name", sorted(NOT_YET | NEVER))
def test_features_that_are_not_there_are_named(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        without_inert({name: {"x": 1}})
    assert caught.value.param == name
    assert name in caught.value.message
    assert without_inert({name: None}) == {}


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=4)))
def test_b023_b024_any_prompt_is_parsed_or_refused_by_name(prompt: object) -> None:
    parsed = refused_or(lambda: parse_prompts(prompt), "prompt")
    if parsed is not None:
        assert parsed
        assert all(isinstance(entry, str) or (entry and {type(token) for token in entry} == {int}) for entry in parsed)


@given(st.one_of(st.none(), st.text(), st.integers(), st.lists(st.one_of(st.text(), st.none()), max_size=6)))
def test_b042_any_stop_is_parsed_or_refused_by_name(stop: object) -> None:
    stops = refused_or(lambda: parse_stops(stop), "stop")
    assert stops is None or all(0 < len(entry) <= 256 for entry in stops)


async def test_b030_defaults(model: ServedModel) -> None:
    chat = await plan_chat(ChatBody.model_validate({"messages": [{"role": "user", "content": "hi"}]}), model)
    [params] = chat.sampling
    assert params.max_tokens == 64 - len(chat.prompts[0].token_ids)
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (1.0, 1.0, 0, 1.0)
    plain = await plan_completion(CompletionBody.model_validate({"prompt": "hi"}), model)
    assert plain.sampling[0].max_tokens == 16
    assert (
        plain.sampling[0].seed != (await plan_completion(CompletionBody.model_validate({"prompt": "hi"}), model)).sampling[0].seed
    )


async def test_b031_b034_a_prompt_that_fills_the_context_is_refused(model: ServedModel) -> None:
    with pytest.raises(ContextLengthExceeded, match="maximum context length is 64 tokens"):
        await plan_completion(CompletionBody.model_validate({"prompt": [5] * 64}), model)
    with pytest.raises(ContextLengthExceeded):
        await plan_chat(ChatBody.model_validate({"messages": [{"role": "user", "content": "é" * 60}]}), model)


async def test_both_names_of_max_tokens(model: ServedModel) -> None:
    base = {"messages": [{"role": "user", "content": "hi"}]}
    for extra in ({"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 3, "max_completion_tokens": 3}):
        assert (await plan_chat(ChatBody.model_validate(base | extra), model)).sampling[0].max_tokens == 3
    with pytest.raises(InvalidRequest, match="contradict"):
        await plan_chat(ChatBody.model_validate(base | {"max_tokens": 3, "max_completion_tokens": 4}), model)


async def test_choice_seeds_count_up_and_wrap(model: ServedModel) -> None:
    plan = await plan_completion(CompletionBody.model_validate({"prompt": "hi", "seed": -1, "n": 2}), model)
    assert [choice_sampling(plan.sampling[0], i).seed for i in range(3)] == [2**64 - 1, 0, 1]


BODIES = (ChatBody, ChatMessage, CompletionBody, DetokenizeBody, StreamOptions, TokenizeBody)


def test_bodies_are_all_there() -> None:
    assert {*Body.__subclasses__(), *GenerationBody.__subclasses__()} == {*BODIES, GenerationBody}


@pytest.mark.parametrize("body", BODIES)
def test_b042_b095_no_body_of_any_width_has_more_than_a_few_errors(body: type[Body]) -> None:
    """Whatever is wide and wrong, all over or in one entry: an error for each entry held the event loop for a minute."""
    many = 20_000
    wide: list[Any] = [[""] * many, [{}] * many, [None] * many, {str(i): "" for i in range(many)}]
    wide += [[wide[-1]], [[""] * many], [{str(i): "" for i in range(100)}] * 2000]
    for value in ({str(i): 1 for i in range(many)}, *({name: one} for name in body.model_fields for one in wide)):
        num_errors = 0
        try:
            body.model_validate(value)
        except ValidationError as error:
            num_errors = error.error_count()
        except InvalidRequest:
            num_errors = 1
        assert num_errors <= 200, list(value)[:1]


async def test_tokens_of_all_sequences_together_are_bounded() -> None:
    """One message that is too large would break the scheduler's stream, and every other request with it."""
    with ThreadPoolExecutor(1) as pool:
        wide = ServedModel(replace(INFO, max_model_len=10**6), names=(), pool=pool)
        body = {"prompt": [[1] * 300_000] * 2, "n": 8, "max_tokens": 1}
        with pytest.raises(InvalidRequest, match="4194304 tokens together, got 4800000") as caught:
            await plan_completion(CompletionBody.model_validate(body), wide)
        assert caught.value.param == "prompt"
        await plan_completion(CompletionBody.model_validate({**body, "n": 4}), wide)


@pytest.mark.parametrize(
    "body", [{"n": True}, {"n": 1.0}, {"n": "1"}, {"stream": 1}, {"seed": 0.5}, {"logit_bias": [1]}, {"top_p": "x"}]
)
def test_types_are_strict(body: dict) -> None:
    with pytest.raises(ValidationError):
        CompletionBody.model_validate({"prompt": "a", **body})


def test_b102_keys_come_from_flags_and_file_and_are_not_shown(tmp_path) -> None:
    path = tmp_path / "keys"
    path.write_text("# who\nsk-a # alice\n\n  sk-b  \n")
    settings = GatewaySettings(api_key=("sk-c",), api_key_file=path)
    assert settings.keys() == ("sk-c", "sk-a", "sk-b")
    assert "sk-c" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "why"), [(b"# nobody yet\n\n", "holds no key"), (b"", "holds no key"), (b"\xff\xfe", "not UTF-8"), (None, "No such")]
)
def test_b102_a_key_file_without_keys_lets_nobody_in(tmp_path, text: bytes | None, why: str) -> None:
    path = tmp_path / "keys"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(SettingsError, match=why):
        GatewaySettings(api_key_file=path).keys()


@pytest.mark.parametrize("keys", [("",), (" ",), ("sk-a", "")])
def test_b102_an_empty_key_is_no_key(keys: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="empty"):
        GatewaySettings(api_key=keys).keys()
