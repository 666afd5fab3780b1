"""Generation over HTTP: n, lists, stops, echo, scores, errors in mid-stream, and clients that leave or do not read."""

import asyncio
import json
import socket
import time

import httpx
import openai
import pytest
from tokenizers import Tokenizer

from drumline.errors import ContextLengthExceeded, Draining, Internal, Overloaded, Unavailable
from gateway.answers import ChatCompletion, ChatCompletionChunk, Completion
from tests.support.gateway_house import House, gateway_house, request_bytes
from tests.support.scripted_scheduler import Script

pytestmark = pytest.mark.asyncio(loop_scope="module")

C = "/v1/completions"
H = "/v1/chat/completions"
CHAT = [{"role": "user", "content": "hi"}]
TEXT = "Hello, world! ďábelské 😀 한국어 ไทย 🇩🇪 e\u0301\n        end"


async def events(http: httpx.AsyncClient, path: str, body: dict) -> list[dict | str]:
    async with http.stream("POST", path, json=body | {"stream": True}) as reply:
        assert reply.status_code == 200, await reply.aread()
        lines = [line[6:] async for line in reply.aiter_lines() if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def test_o1_b001_b002_b006_stream_equals_whole_equals_script(house: House) -> None:
    for burst in (1, 3, 50):
        house.scheduler.say(TEXT, burst=burst)
        whole = (await house.http.post(C, json={"prompt": "x", "max_tokens": 400})).json()
        chunks = await events(house.http, C, {"prompt": "x", "max_tokens": 400})
        assert whole["choices"][0]["text"] == TEXT
        assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == TEXT
        assert not any("\ufffd" in c["choices"][0]["text"] for c in chunks[:-1])


async def test_answers_have_the_documented_shapes(house: House) -> None:
    house.scheduler.say(TEXT)
    scored = {"logprobs": True, "top_logprobs": 3, "stream_options": {"include_usage": True}}
    for chunk in (await events(house.http, H, {"messages": CHAT, **scored}))[:-1]:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    ChatCompletion.model_validate((await house.http.post(H, json={"messages": CHAT, "logprobs": True})).json(), strict=True)
    for chunk in (await events(house.http, C, {"prompt": "x", "logprobs": 2, "echo": True}))[:-1]:
        Completion.model_validate(chunk, strict=True)
    Completion.model_validate((await house.http.post(C, json={"prompt": "x", "logprobs": 0})).json(), strict=True)


async def test_b027_b028_n_choices_each_whole_with_its_own_seed(house: House) -> None:
    for _ in range(5):
        house.scheduler.submitted.clear()
        house.scheduler.script = lambda request: Script(house.scheduler.ids(f"seed {request.sampling.seed}"))
        whole = await house.openai.completions.create(model="scripted", prompt="x", n=8, seed=40, max_tokens=60)
        assert [c.index for c in whole.choices] == list(range(8))
        assert [c.text for c in whole.choices] == [f"seed {40 + i}" for i in range(8)]
        assert {c.finish_reason for c in whole.choices} == {"stop"}
        assert whole.usage.prompt_tokens == len(house.scheduler.ids("x"))
        chunks = await events(house.http, H, {"messages": CHAT, "n": 3, "seed": -1})
        for index, seed in enumerate([2**64 - 1, 0, 1]):
            mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert "".join(c["delta"].get("content", "") for c in mine) == f"seed {seed}"
            assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
            assert mine[-1] == {"index": index, "delta": {}, "logprobs": None, "finish_reason": "stop"}


async def test_lists_of_prompts_in_all_forms(house: House) -> None:
    ids = house.scheduler.ids("abc DEF")
    house.scheduler.script = lambda request: Script(list(request.prompt_token_ids))
    for prompt, texts in (
        (["abc", "DEF"], ["abc", "DEF"]),
        (ids, ["abc DEF"]),
        ([ids, house.scheduler.ids("stop")], ["abc DEF", "stop"]),
    ):
        answer = (await house.http.post(C, json={"prompt": prompt, "n": 2, "echo": True})).json()
        assert [c["text"] for c in answer["choices"]] == [text + text for text in texts for _ in range(2)]
    assert len(house.scheduler.submitted) == 2 * (2 + 1 + 2)


async def test_b009_b010_b015_stops_withdraw_the_sequence(house: House) -> None:
    house.scheduler.say("ABCDEFGHIJ and much more" * 10)
    for stop, text in ((["DEFGHIJ"], "ABC"), (["DE"], "ABC"), ("\nObservation", None)):
        house.scheduler.aborted.clear()
        body = {"prompt": "x", "stop": stop, "max_tokens": 450}
        whole = (await house.http.post(C, json=body)).json()
        chunks = await events(house.http, C, body)
        assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == whole["choices"][0]["text"]
        if text is not None:
            assert whole["choices"][0]["text"] == text
            assert whole["choices"][0]["finish_reason"] == "stop"
            await house.until_idle()
            assert len(house.scheduler.aborted) + 1 >= 2
    assert not house.scheduler.submitted[0].sampling.stop_token_ids, "user stops never replace the model's own ends"


async def test_b030_no_max_tokens_means_up_to_the_context_in_chat_and_16_in_completions(house: House) -> None:
    house.scheduler.say("a")
    for extra in ({}, {"max_tokens": None}):
        await house.http.post(H, json={"messages": CHAT, **extra})
        await house.http.post(C, json={"prompt": "abc", **extra})
    chat, completion, *_ = house.scheduler.submitted
    assert chat.sampling.max_tokens == 512 - len(chat.prompt_token_ids)
    assert completion.sampling.max_tokens == 16


async def test_parameters_arrive_as_sent(house: House) -> None:
    house.scheduler.say("a")
    asked = {"temperature": 0.5, "top_k": -1, "top_p": 0.25, "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": -1}
    more = {"frequency_penalty": 2, "logit_bias": {"5": -100, "7": 3}, "seed": 11, "min_tokens": 2, "stop_token_ids": [9]}
    body = {"prompt": "x", "max_tokens": 7, "ignore_eos": True, "cache_salt": "s:1", **asked, **more}
    reply = await house.http.post(C, json=body, headers={"x-request-id": "me-1"})
    assert reply.headers["x-request-id"] == "me-1"
    [sent] = house.scheduler.submitted
    assert (sent.request_id, sent.cache_salt, sent.tenant, sent.timeout_ms) == ("me-1", "s:1", "", 600_000)
    s = sent.sampling
    assert (s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty) == (0.5, 0, 0.25, 0.125, 1.5)
    assert (s.presence_penalty, s.frequency_penalty, s.seed, s.min_tokens, s.max_tokens) == (-1, 2, 11, 2, 7)
    assert dict(zip(s.logit_bias_ids, s.logit_bias_values, strict=True)) == {5: -100, 7: 3}
    assert (list(s.stop_token_ids), s.ignore_eos) == ([9], True)


async def test_b029_equal_request_ids_are_told_apart(house: House) -> None:
    house.scheduler.step_s = 0.005
    house.scheduler.say("Hello, world! " * 8)
    headers = {"x-request-id": "same"}
    body = {"prompt": "x", "max_tokens": 400, "stream": True}
    async with house.http.stream("POST", C, json=body, headers=headers) as doomed:
        await anext(doomed.aiter_lines())
        other = asyncio.create_task(house.http.post(C, json=body | {"stream": False}, headers=headers))
        await asyncio.sleep(0.02)
    assert (await other).json()["choices"][0]["text"] == "Hello, world! " * 8
    assert len(house.scheduler.aborted) == 1
    bad = await house.http.get("/live", headers={"x-request-id": "a b/c"})
    assert bad.headers["x-request-id"].startswith("req-")


async def test_b016_b017_scoring_a_prompt(house: House) -> None:
    prompt = "Hello, world!"
    body = {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 1, "top_k": 1}
    house.scheduler.script = lambda request: Script([])
    answer = (await house.http.post(C, json=body)).json()
    choice, ids = answer["choices"][0], house.scheduler.ids(prompt)
    assert choice["text"] == prompt
    scores = choice["logprobs"]
    assert scores["token_logprobs"] == [None] + [-0.5] * (len(ids) - 1)
    assert scores["top_logprobs"][0] is None
    assert "".join(scores["tokens"]) == prompt
    assert scores["text_offset"] == [len("".join(scores["tokens"][:i])) for i in range(len(ids))]
    assert answer["usage"]["completion_tokens"] == 0
    assert (await events(house.http, C, body))[0]["choices"][0]["logprobs"] == scores


async def test_echo_with_scores_goes_on_into_the_answer(house: House) -> None:
    house.scheduler.say(" a time")
    body = {"prompt": "Once upon", "max_tokens": 40, "echo": True, "logprobs": 2}
    choice = (await house.http.post(C, json=body)).json()["choices"][0]
    assert choice["text"] == "Once upon a time"
    assert "".join(choice["logprobs"]["tokens"]) == "Once upon a time<|im_end|>"
    assert choice["logprobs"]["text_offset"][-1] == len("Once upon a time")
    assert all(len(top) == 3 for top in choice["logprobs"]["top_logprobs"][1:])


async def test_b018_an_infinite_score_becomes_a_finite_floor(house: House) -> None:
    house.scheduler.script = lambda request: Script([300, 301])
    reply = await house.http.post(H, json={"messages": CHAT, "logprobs": True, "top_logprobs": 5})
    answer = json.loads(reply.text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [-10000.0, -0.5, -0.5]
    assert all(len(entry["top_logprobs"]) == 5 for entry in content)


async def test_scores_of_split_characters_name_their_bytes(house: House) -> None:
    house.scheduler.say("😀")
    answer = await house.openai.chat.completions.create(model="scripted", messages=CHAT, logprobs=True, top_logprobs=0)
    content = answer.choices[0].logprobs.content
    assert bytes(byte for entry in content[:-1] for byte in entry.bytes) == "😀".encode()
    assert content[0].token.startswith("bytes:\\x")


REFUSALS = [
    (Overloaded("full", retry_after_s=7), 429),
    (ContextLengthExceeded("too long"), 400),
    (Unavailable("no executor"), 503),
    (Draining("bye"), 503),
]


@pytest.mark.parametrize(("error", "status"), REFUSALS)
async def test_b032_b081_refusals_are_http_statuses_before_any_event(house: House, error: Exception, status: int) -> None:
    house.scheduler.script = lambda request: Script([], refuse=error)
    for stream in (True, False):
        reply = await house.http.post(C, json={"prompt": ["x", "y"], "stream": stream})
        assert reply.status_code == status
        assert reply.json()["error"]["message"] == error.message
        assert reply.json()["error"]["code"] == error.code
    if status == 429:
        assert reply.headers["retry-after"] == "7"
        with pytest.raises(openai.RateLimitError):
            await house.openai.completions.create(model="scripted", prompt="x")


async def test_b082_failure_in_mid_stream_is_an_error_event_then_done(house: House) -> None:
    ids = house.scheduler.ids("Hello, world! ")
    house.scheduler.script = lambda request: Script(ids, fail_after=3, error=Internal("the row failed"))
    got = await events(house.http, H, {"messages": CHAT, "n": 2})
    assert got[-1] == "[DONE]"
    assert got[-2]["error"]["message"] == "the row failed"
    assert sum("error" in event for event in got[:-1]) == 1
    with pytest.raises(openai.APIError):
        async for _ in await house.openai.completions.create(model="scripted", prompt="x", stream=True):
            pass
    assert (await house.http.post(C, json={"prompt": "x"})).status_code == 500
    house.scheduler.script = lambda request: Script(ids, fail_after=0, deadline=True)
    assert (await house.http.post(C, json={"prompt": "x", "stream": True})).status_code == 504


async def test_b054_clients_that_leave_cancel_streaming_and_not(house: House) -> None:
    house.scheduler.step_s = 0.002
    house.scheduler.script = lambda request: Script([5] * 400, hang=True)
    for body in ({"prompt": "x", "max_tokens": 450, "stream": True}, {"prompt": "x", "max_tokens": 450}):
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            writer.write(request_bytes(C, body, close=False))
            if body.get("stream"):
                await reader.readuntil(b"data: ")
            else:
                await asyncio.sleep(0.01)
            writer.close()
        await house.until_idle()
    assert len(set(house.scheduler.aborted)) == 40
    assert not house.server.gateway.client._live
    house.scheduler.say("fine")
    assert (await house.http.post(C, json={"prompt": "x"})).json()["choices"][0]["text"] == "fine"


async def test_b076_a_lost_scheduler_fails_everyone_fast_and_is_found_again(house: House) -> None:
    house.scheduler.script = lambda request: Script([5] * 10, hang=True)
    streaming = asyncio.create_task(events(house.http, C, {"prompt": "x", "max_tokens": 400}))
    whole = asyncio.create_task(house.http.post(C, json={"prompt": "x", "max_tokens": 400}))
    async with asyncio.timeout(5):
        while len(house.scheduler.running) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        begin_s = time.perf_counter()
        await house.scheduler.die()
        assert (await whole).status_code == 503
        got = await streaming
    assert time.perf_counter() - begin_s < 2
    assert got[-2]["error"]["code"] == "unavailable"
    assert got[-1] == "[DONE]"
    assert (await house.http.get("/ready")).status_code == 503
    assert (await house.http.get("/live")).status_code == 200
    assert (await house.http.post(C, json={"prompt": "x"})).status_code == 503
    await house.scheduler.start(house.scheduler.port)
    await house.until_ready()
    house.scheduler.say("back")
    assert (await house.http.post(C, json={"prompt": "x"})).json()["choices"][0]["text"] == "back"


async def test_b089_a_client_that_does_not_read_is_cut_and_others_go_on(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.sse.SLOW_CLIENT_TIMEOUT_S", 1.0)
    async with gateway_house(tokenizer, scheduler={"max_model_len": 100_000}) as house:
        ids = house.scheduler.ids("Hello, world! ") * 10_000
        house.scheduler.script = lambda request: Script(ids, burst=50)
        body = {"messages": CHAT, "max_tokens": 90_000, "stream": True, "logprobs": True, "top_logprobs": 20}
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", house.port))
        deaf.sendall(request_bytes(H, body, close=False))
        async with asyncio.timeout(20):
            while not house.scheduler.running:
                await asyncio.sleep(0.01)
            fine = await house.http.post(C, json={"prompt": "y", "max_tokens": 60})
            assert fine.json()["usage"]["completion_tokens"] == 60
            await house.until_idle()
            while house.server.gateway._live:
                await asyncio.sleep(0.02)
        assert house.scheduler.aborted == [house.scheduler.submitted[0].handle]
        deaf.close()


async def test_b005_gap_ids_add_no_text_and_count(house: House) -> None:
    gap = house.scheduler.tokenizer.get_vocab_size() + 3
    house.scheduler.script = lambda request: Script([*house.scheduler.ids("ab"), gap, *house.scheduler.ids("cd")])
    answer = (await house.http.post(C, json={"prompt": "x", "max_tokens": 50})).json()
    assert answer["choices"][0]["text"] == "abcd"
    assert answer["usage"]["completion_tokens"] == len(house.scheduler.ids("ab") + house.scheduler.ids("cd")) + 2
