"""The load client reads what each server streams: usage comes behind the last text, in an event of its own or not."""

import asyncio
import json

import pytest

from bench.client import BenchError, Target, stream
from bench.workloads import Request

USAGE = {"prompt_tokens": 1, "completion_tokens": 2}
DRUMLINE = [{"choices": [{"text": " one"}]}, {"choices": [{"text": " two"}]}, {"choices": [], "usage": USAGE}]
VLLM = [
    {"choices": [{"text": " one"}], "usage": None},
    {"choices": [{"text": " two"}], "usage": None},
    {"choices": [], "usage": USAGE},
]
LLAMA = [{"choices": [{"text": " one"}]}, {"choices": [{"text": " two"}]}, {"choices": [{"text": ""}], "usage": USAGE}]
SHORT = [{"choices": [{"text": " one"}]}, {"choices": [], "usage": {"completion_tokens": 1}}]


async def streamed(events, separators):
    """What the client makes of these events from a server on a free port."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in [*(json.dumps(event, separators=separators) for event in events), "[DONE]"]:
            line = f"data: {event}\n\n".encode()
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await stream(Target(f"http://127.0.0.1:{port}", "m"), Request((1,), 2))


@pytest.mark.parametrize("separators", [None, (",", ":")])
@pytest.mark.parametrize("events", [DRUMLINE, VLLM, LLAMA], ids=["drumline", "vllm", "llama.cpp"])
async def test_tokens_are_counted_and_timed(events, separators):
    answer = await streamed(events, separators)
    assert answer.num_output_tokens == 2
    assert len(answer.event_s) == 2
    assert answer.sent_s < answer.event_s[0] <= answer.event_s[1] <= answer.last_s


async def test_an_answer_of_another_length_is_an_error():
    with pytest.raises(BenchError, match="asked for 2 tokens, got 1"):
        await streamed(SHORT, None)
