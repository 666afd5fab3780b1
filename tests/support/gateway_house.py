"""The real gateway, under its real server, before a scripted scheduler; all in the test's own event loop."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import openai
from tokenizers import Tokenizer

from gateway.config import GatewaySettings
from gateway.server import HttpServer
from tests.support.scripted_scheduler import ScriptedScheduler, scripted_scheduler


@dataclass
class House:
    """A running pair. `http` and `openai` are clients with no retries."""

    scheduler: ScriptedScheduler
    server: HttpServer
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI

    @property
    def port(self) -> int:
        return self.server.port

    async def until_ready(self) -> None:
        async with asyncio.timeout(10):
            while (await self.http.get("/ready")).status_code != 200:
                await asyncio.sleep(0.01)

    async def until_idle(self) -> None:
        """No sequence runs at the scheduler."""
        async with asyncio.timeout(5):
            while self.scheduler.running:
                await asyncio.sleep(0.005)

    async def raw(self, data: bytes, *, timeout_s: float = 5.0) -> bytes:
        """Bytes in, all bytes out until the gateway closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        received = b""
        try:
            async with asyncio.timeout(timeout_s):
                with contextlib.suppress(ConnectionError):
                    writer.write(data)
                    await writer.drain()
                with contextlib.suppress(ConnectionError):
                    while chunk := await reader.read(65536):
                        received += chunk
        finally:
            writer.close()
        return received


def request_bytes(path: str, body: object, *, close: bool = True, headers: str = "") -> bytes:
    """One raw POST."""
    payload = json.dumps(body).encode()
    end = "Connection: close\r\n" if close else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n{headers}{end}\r\n"
    )
    return head.encode() + payload


@contextlib.asynccontextmanager
async def gateway_house(
    tokenizer: Tokenizer, *, ready: bool = True, scheduler: dict | None = None, **settings: object
) -> AsyncIterator[House]:
    """Starts both, waits until ready, and stops both."""
    async with scripted_scheduler(tokenizer, **(scheduler or {})) as scripted:
        address = f"127.0.0.1:{scripted.port}"
        quick = {"status_interval_s": 0.05, "drain_timeout_s": 0}
        config = GatewaySettings(port=0, scheduler=address, **(quick | settings))
        server = HttpServer(config)
        serving = asyncio.create_task(server.serve())
        url = f"http://127.0.0.1:{server.port}"
        headers = {"authorization": f"Bearer {config.api_key[0]}"} if config.api_key else {}
        async with httpx.AsyncClient(base_url=url, timeout=20, headers=headers) as http:
            client = openai.AsyncOpenAI(
                base_url=url + "/v1", api_key=config.api_key[0] if config.api_key else "none", max_retries=0
            )
            house = House(scripted, server, http, client)
            if ready:
                await house.until_ready()
            yield house
            await client.close()
        server.stop()
        await serving
