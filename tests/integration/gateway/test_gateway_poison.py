"""Poison inputs: each gets its 4xx as an error object that leaks nothing, nothing is queued, and the next request is served."""

import json
import time

import pytest

from tests.support.gateway_house import House
from tests.support.scripted_scheduler import small_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

C = "/v1/completions"
H = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
VOCAB = small_tokenizer().get_vocab_size() + 8
POISON: dict[str, tuple[str, object, str | None]] = {
    "b023_empty_list": (C, {"prompt": []}, "prompt"),
    "b023_list_of_empty_string": (C, {"prompt": [""], "max_tokens": 20}, "prompt"),
    "b023_empty_string": (C, {"prompt": ""}, "prompt"),
    "b023_list_of_empty_list": (C, {"prompt": [[]]}, "prompt"),
    "b023_b025_no_messages": (H, {"messages": []}, "messages"),
    "b024_negative_nested": (C, {"prompt": [[-1]]}, "prompt"),
    "b024_negative": (C, {"prompt": [-1]}, "prompt"),
    "b024_vocab_size": (C, {"prompt": [VOCAB]}, "prompt"),
    "b024_int_overflow": (C, {"prompt": [2**31]}, "prompt"),
    "b024_huge": (C, {"prompt": [5279552648203111001]}, "prompt"),
    "b024_beyond_64_bits": (C, {"prompt": [2**200]}, "prompt"),
    "b024_float": (C, {"prompt": [1.5]}, "prompt"),
    "b024_bool": (C, {"prompt": [True]}, "prompt"),
    "b024_mixed": (C, {"prompt": ["a", 1]}, "prompt"),
    "b026_many_prompts": (C, {"prompt": ["a"] * 100_000, "max_tokens": 1}, "prompt"),
    "b026_prompts_times_n": (C, {"prompt": ["a"] * 64, "n": 8}, "n"),
    "b031_output_too_long": (C, {"prompt": [5] * 8, "max_tokens": 509}, "max_tokens"),
    "b032_b034_prompt_too_long": (C, {"prompt": [5] * 513, "max_tokens": 1, "stream": True}, "prompt"),
    "b034_chat_too_long": (H, {"messages": [{"role": "user", "content": "x1" * 3000}]}, "prompt"),
    "b034_text_far_too_long": (C, {"prompt": "zq" * 500_000, "stream": True}, "prompt"),
    "b038_top_p_0": (C, {"prompt": "a", "top_p": 0}, "top_p"),
    "b038_top_k_minus_2": (C, {"prompt": "a", "top_k": -2}, "top_k"),
    "b039_bias_out_of_vocabulary": (C, {"prompt": "a", "logit_bias": {"191222": -100}}, "logit_bias"),
    "b039_bias_far_out": (C, {"prompt": "a", "logit_bias": {"99999999": 5}}, "logit_bias"),
    "b039_bias_word": (C, {"prompt": "a", "logit_bias": {"AI": -100}}, "logit_bias"),
    "b039_bias_negative": (C, {"prompt": "a", "logit_bias": {"-1": 5}}, "logit_bias"),
    "b039_bias_unicode_digit": (C, {"prompt": "a", "logit_bias": {"\u0663": 5}}, "logit_bias"),
    "b039_bias_string_value": (C, {"prompt": "a", "logit_bias": {"1": "x"}}, "logit_bias.1"),
    "b039_bias_1e9": (C, {"prompt": "a", "logit_bias": {"1": 1e9}}, "logit_bias"),
    "b040_stop_token_ids": (
        C,
        {"prompt": "a", "stop_token_ids": [10000000, -5], "min_tokens": 1, "max_tokens": 4},
        "stop_token_ids",
    ),
    "b041_many_bias": (C, {"prompt": "a", "logit_bias": {str(i): 1 for i in range(5000)}}, "logit_bias"),
    "b041_many_stop_ids": (C, {"prompt": "a", "stop_token_ids": [1] * 500}, "stop_token_ids"),
    "b041_allowed_token_ids": (C, {"prompt": "a", "allowed_token_ids": list(range(2000))}, "allowed_token_ids"),
    "b042_5_stops": (C, {"prompt": "a", "stop": ["x"] * 5}, "stop"),
    "b042_500000_stops": (C, {"prompt": "a", "stop": ["x"] * 500_000}, "stop"),
    "b042_1mb_stop": (C, {"prompt": "a", "stop": "x" * 1_000_000}, "stop"),
    "b042_empty_stop": (C, {"prompt": "a", "stop": [""]}, "stop"),
    "b042_bad_words": (C, {"prompt": "a", "bad_words": ["x"] * 50_000}, "bad_words"),
    "b048_b050_response_format": (H, {"messages": USER, "response_format": {"type": "json_schema"}}, "response_format"),
    "b051_b052_tools": (H, {"messages": USER, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    "b053_unknown_role": (H, {"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
    "b053_null_content": (H, {"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
    "b053_image_part": (H, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
    "b053_tool_message_first": (H, {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "tool_call_id"),
    "b095_n": (C, {"prompt": "a", "n": 10**9}, "n"),
    "b095_n_minus_1": (C, {"prompt": "a", "n": -1}, "n"),
    "b095_best_of": (C, {"prompt": "a", "best_of": 10**9}, "best_of"),
    "b095_logprobs": (C, {"prompt": "a", "logprobs": 10**9}, "logprobs"),
    "b095_logprobs_minus_1": (C, {"prompt": "a", "logprobs": -1}, "logprobs"),
    "b095_top_logprobs": (H, {"messages": USER, "logprobs": True, "top_logprobs": 10**9}, "top_logprobs"),
    "b095_max_tokens": (C, {"prompt": "a", "max_tokens": 10**9}, "max_tokens"),
    "b095_max_tokens_minus_1": (C, {"prompt": "a", "max_tokens": -1}, "max_tokens"),
    "b098_chat_template": (H, {"messages": USER, "chat_template": "{{ 'x' * 10**9 }}"}, "chat_template"),
    "b098_template_kwargs": (H, {"messages": USER, "chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    "b100_salt_nul": (C, {"prompt": "a", "cache_salt": "a\x00"}, "cache_salt"),
    "b100_salt_slash": (C, {"prompt": "a", "cache_salt": "a/b"}, "cache_salt"),
    "b100_salt_newline": (C, {"prompt": "a", "cache_salt": "a\n"}, "cache_salt"),
    "b100_salt_emoji": (C, {"prompt": "a", "cache_salt": "😀"}, "cache_salt"),
    "b100_salt_long": (C, {"prompt": "a", "cache_salt": "x" * 10_000}, "cache_salt"),
    "unknown_field": (C, {"prompt": "a", "temprature": 1}, "temprature"),
    "unknown_field_with_address": (C, {"prompt": "a", "0x7f\n/usr/lib": 1}, "0x7f\\n/usr/lib"),
    "lone_surrogate": (C, {"prompt": "a\ud800"}, "prompt"),
    "lone_surrogate_chat": (H, {"messages": [{"role": "user", "content": "\udfff"}]}, "messages"),
    "stream_options_alone": (C, {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
    "top_logprobs_alone": (H, {"messages": USER, "top_logprobs": 2}, "top_logprobs"),
    "min_over_max": (C, {"prompt": "a", "min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    "max_tokens_0": (C, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    "temperature_string": (C, {"prompt": "a", "temperature": "1"}, "temperature"),
    "temperature_bool": (C, {"prompt": "a", "temperature": True}, "temperature"),
    "temperature_nan": (C, b'{"prompt": "a", "temperature": NaN}', "temperature"),
    "penalty_infinite": (C, b'{"prompt": "a", "presence_penalty": -Infinity}', "presence_penalty"),
    "repetition_penalty_0": (C, {"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"),
    "seed_too_large": (C, {"prompt": "a", "seed": 2**63}, "seed"),
    "suffix": (C, {"prompt": "a", "suffix": "b"}, "suffix"),
    "audio": (H, {"messages": USER, "audio": {"voice": "x"}}, "audio"),
    "not_json": (C, b"{", None),
    "deep_json": (C, b'{"prompt":' + b"[" * 100_000, None),
    "giant_number": (C, b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}", None),
    "not_utf8": (C, b'{"prompt": "\xff\xfe"}', None),
    "an_array": (C, b"[]", None),
    "empty_body": (C, b"", None),
    "no_prompt": (C, {}, "prompt"),
    "null_prompt": (C, {"prompt": None}, "prompt"),
    "object_prompt": (C, {"prompt": {"a": 1}}, "prompt"),
    "tokenize_both": ("/tokenize", {"prompt": "a", "messages": USER}, "prompt"),
    "tokenize_long": ("/tokenize", {"prompt": "a " * 300_000}, "prompt"),
    "detokenize_long": ("/detokenize", {"tokens": [5] * 200_000}, "tokens"),
    "detokenize_wrong_everywhere": ("/detokenize", {"tokens": [""] * 1_000_000}, "tokens"),
    "b042_wide_stop_ids": (C, {"prompt": "a", "stop_token_ids": [[]] * 300_000}, "stop_token_ids"),
    "b041_wide_bias": (C, {"prompt": "a", "logit_bias": {str(i): "" for i in range(250_000)}}, "logit_bias"),
    "wide_body": (C, {"prompt": "a", **{str(i): 1 for i in range(250_000)}}, None),
    "wide_message": (H, {"messages": [{"role": "user", "content": "a", **{str(i): 1 for i in range(250_000)}}]}, None),
    "wrong_messages": (H, {"messages": [{str(i): 1 for i in range(100)}] * 2000}, "messages.0.role"),
    "detokenize_gap": ("/detokenize", {"tokens": [10**9]}, "tokens"),
}
LEAKS = ("Traceback", "/usr/lib/", "site-packages", ".py", "127.0.0.1", "object at")


async def test_every_poison_is_refused_alone_and_the_next_request_is_served(house: House) -> None:
    house.scheduler.say("fine")
    wrong = []
    for name, (path, body, param) in POISON.items():
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        begin_s = time.perf_counter()
        reply = await house.http.post(path, content=data, headers={"content-type": "application/json"})
        took_s = time.perf_counter() - begin_s
        error = reply.json().get("error", {})
        right = reply.status_code == 400 and set(error) == {"message", "type", "param", "code"} and bool(error["message"])
        right = right and error["type"] == "invalid_request_error" and error["param"] == param and took_s < 3
        if not right or any(leak in reply.text for leak in LEAKS):
            wrong.append((name, reply.status_code, round(took_s, 2), reply.text[:300]))
    assert not wrong
    assert not house.scheduler.submitted, "something was queued"
    assert (await house.openai.completions.create(model="scripted", prompt="   ", max_tokens=50)).choices[0].text == "fine"


async def test_b031_the_message_names_limit_prompt_and_asked_length(house: House) -> None:
    reply = await house.http.post(C, json={"prompt": [5] * 8, "max_tokens": 509})
    error = reply.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 512 tokens. However, you requested ")
    assert "517 tokens (8 in the prompt, 509 in the completion)" in error["message"]


async def test_b095_absurd_numbers_are_refused_at_once(house: House) -> None:
    for field in ("n", "best_of", "logprobs", "max_tokens"):
        for value in (10**9, -1):
            begin_s = time.perf_counter()
            assert (await house.http.post(C, json={"prompt": "a", field: value})).status_code == 400
            assert time.perf_counter() - begin_s < 0.5


async def test_unknown_model_is_404(house: House) -> None:
    reply = await house.http.post(C, json={"model": "gpt-9", "prompt": "a"})
    assert reply.status_code == 404
    assert reply.json()["error"]["param"] == "model"
    assert (await house.http.get("/v1/models/gpt-9")).status_code == 404
    assert (await house.http.get("/nothing")).json()["error"]["code"] == "not_found"
    assert (await house.http.put(C)).status_code == 405


async def test_ignored_and_inert_fields_are_accepted(house: House) -> None:
    house.scheduler.say("fine")
    inert = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "audio": None, "functions": None}
    ignored = {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": True}
    message = {"role": "assistant", "content": "yo", "refusal": None, "tool_calls": None, "audio": None, "annotations": []}
    reply = await house.http.post(H, json={"messages": [*USER, message, *USER], **inert, **ignored})
    assert reply.status_code == 200, reply.text


async def test_b053_what_a_template_can_render_is_rendered(house: House) -> None:
    house.scheduler.say("fine")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for messages in ([*USER, *USER], [{"role": "user", "content": parts}], [{"role": "developer", "content": "x"}, *USER]):
        assert (await house.http.post(H, json={"messages": messages})).status_code == 200
    prompt = house.scheduler.tokenizer.decode(house.scheduler.submitted[-2].prompt_token_ids, skip_special_tokens=False)
    assert "<|im_start|>user\nab<|im_end|>" in prompt
    prompt = house.scheduler.tokenizer.decode(house.scheduler.submitted[-1].prompt_token_ids, skip_special_tokens=False)
    assert "<|im_start|>system\nx<|im_end|>" in prompt
