"""The load: one process, one event loop, one connection a stream, nothing parsed that need not be.

Raw asyncio streams instead of an HTTP library: at hundreds of events a second on a machine of two cores the client must not take
what it measures. It reports its own share of a processor beside the results.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from bench.workloads import Request

_LIMIT_BYTES = 1 << 20


class BenchError(Exception):
    """The server did not do what was asked, so there is nothing to measure; says what it answered."""


@dataclass
class Streamed:
    """One answer.

    Attributes:
        sent_s, last_s: monotonic clock at the first byte sent and at the last event received.
        event_s: monotonic clock of each event that carried text.
        num_output_tokens: as the server's usage says.
    """

    sent_s: float
    last_s: float = 0.0
    event_s: list[float] = field(default_factory=list)
    num_output_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.event_s[0] - self.sent_s

    @property
    def itl_s(self) -> list[float]:
        """Gaps between events with text: a server that sends two tokens in one event has one gap for both."""
        return [later - earlier for earlier, later in zip(self.event_s, self.event_s[1:], strict=False)]


@dataclass(frozen=True)
class Target:
    """Where to send it."""

    url: str
    model: str
    api_key: str = ""


async def run_all(target: Target, streams: Sequence[Sequence[Request]]) -> list[Streamed]:
    """Runs all streams at once, each stream's requests one after the other. Raises BenchError."""

    async def one(requests: Sequence[Request]) -> list[Streamed]:
        return [await stream(target, request) for request in requests]

    done = await asyncio.gather(*(one(requests) for requests in streams))
    return [answer for answers in done for answer in answers]


async def stream(target: Target, request: Request) -> Streamed:
    """Sends one streaming completion, greedy and to its exact length. Raises BenchError."""
    where = urlsplit(target.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=_LIMIT_BYTES)
    try:
        payload = _request_bytes(target, request)
        answer = Streamed(sent_s=time.monotonic())
        writer.write(payload)
        await _expect_ok(reader)
        async for event in _events(reader):
            now = time.monotonic()
            _take(answer, event, now)
    finally:
        writer.close()
    if answer.num_output_tokens != request.num_output_tokens or not answer.event_s:
        raise BenchError(f"asked for {request.num_output_tokens} tokens, got {answer.num_output_tokens}")
    return answer


def _request_bytes(target: Target, request: Request) -> bytes:
    body = json.dumps(
        {
            "model": target.model,
            "prompt": list(request.prompt),
            "max_tokens": request.num_output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    key = f"authorization: Bearer {target.api_key}\r\n" if target.api_key else ""
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {urlsplit(target.url).netloc}\r\ncontent-type: application/json\r\n"
        f"{key}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


async def _expect_ok(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if head.split(b" ", 2)[1] != b"200":
        raise BenchError(f"{head.splitlines()[0].decode()}: {(await reader.read(2000)).decode(errors='replace')}")
    if b"transfer-encoding: chunked" not in head.lower():
        raise BenchError("the answer is not a chunked stream")


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Payloads of the `data:` lines of a chunked event stream, `[DONE]` left out."""
    pending = b""
    while size := int(await reader.readline(), 16):
        pending += (await reader.readexactly(size + 2))[:-2]
        *whole, pending = pending.split(b"\n")
        for line in whole:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                yield line[6:].rstrip()


def _take(answer: Streamed, event: bytes, now: float) -> None:
    """Books one event. Only one with usage is parsed as a whole: one behind the last text, with no choices or with an empty one."""
    answer.last_s = now
    if b'"usage":{' in event or b'"usage": {' in event:
        answer.num_output_tokens = int(json.loads(event)["usage"]["completion_tokens"])
    elif b'"error"' in event[:12]:
        raise BenchError(event.decode(errors="replace"))
    elif b'"text":""' not in event and b'"text": ""' not in event:
        answer.event_s.append(now)
