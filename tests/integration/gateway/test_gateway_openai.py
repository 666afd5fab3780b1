"""The `openai` client as the oracle of the API's shape."""

import json

import pytest

from tests.support.gateway_house import House, request_bytes

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = [{"role": "user", "content": "hi"}]


async def test_chat_whole(house: House) -> None:
    house.scheduler.say("Hello, world! ďábelské 😀", num_cached=4)
    answer = await house.openai.chat.completions.create(model="scripted", messages=CHAT)
    assert answer.choices[0].message.content == "Hello, world! ďábelské 😀"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(house.scheduler.ids("Hello, world! ďábelské 😀")) + 1
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert answer.usage.prompt_tokens == len(house.scheduler.submitted[0].prompt_token_ids)


async def test_chat_stream(house: House) -> None:
    house.scheduler.say("Hello, world!")
    stream = await house.openai.chat.completions.create(
        model="scripted", messages=CHAT, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello, world!"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-2].choices[0].delta.content is None
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(house.scheduler.ids("Hello, world!")) + 1
    assert all(c.usage is None for c in chunks[:-1])


async def test_completion(house: House) -> None:
    house.scheduler.say(" a time there was")
    whole = await house.openai.completions.create(model="scripted", prompt="Once upon", max_tokens=100)
    stream = await house.openai.completions.create(model="scripted", prompt="Once upon", max_tokens=100, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text == " a time there was"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_b083_b084_raw_events(house: House) -> None:
    house.scheduler.say("ďábelské 😀 한국어 ไทย")
    body = {"messages": CHAT, "stream": True, "stream_options": {"include_usage": True}}
    raw = await house.raw(request_bytes("/v1/chat/completions", body))
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"text/event-stream" in head
    payload = dechunk(rest)
    payload.decode("ascii")
    events = payload.split(b"\n\n")
    assert events[-1] == b""
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events[:-1])
    assert events[-2] == b"data: [DONE]"
    parsed = [json.loads(event[6:]) for event in events[:-2]]
    assert parsed[-1]["choices"] == []
    assert parsed[-1]["usage"]["completion_tokens"] > 0
    assert all(event["usage"] is None for event in parsed[:-1])


def dechunk(data: bytes) -> bytes:
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        out += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return out
