"""The gateway as a process of its own: readiness line, drain, exit status, memory."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from tokenizers import Tokenizer

from tests.support.scripted_scheduler import Script, ScriptedScheduler, scripted_scheduler

ROOT = Path(__file__).resolve().parents[3]
C = "/v1/completions"


@dataclass
class Process:
    scheduler: ScriptedScheduler
    process: asyncio.subprocess.Process
    port: int
    http: httpx.AsyncClient


@contextlib.asynccontextmanager
async def gateway_process(tokenizer: Tokenizer, *flags: str) -> AsyncIterator[Process]:
    async with scripted_scheduler(tokenizer) as scheduler:
        command = [sys.executable, "-m", "gateway", "--port", "0", "--scheduler", f"127.0.0.1:{scheduler.port}", *flags]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdout=-1, stderr=-1, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
        )
        try:
            async with asyncio.timeout(30):
                line = (await process.stdout.readline()).decode()
                assert line.startswith("READY gateway 127.0.0.1:"), (line, await process.stderr.read())
                port = int(line.rsplit(":", 1)[1])
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
                    while (await http.get("/ready")).status_code != 200:
                        await asyncio.sleep(0.02)
                    yield Process(scheduler, process, port, http)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def test_b079_sigterm_drains_live_streams_refuses_new_ones_and_exits_0(tokenizer: Tokenizer) -> None:
    async with gateway_process(tokenizer, "--drain-timeout-s", "20") as gateway:
        gateway.scheduler.step_s = 0.02
        gateway.scheduler.script = lambda request: Script([5] * 50)
        body = {"prompt": "x", "max_tokens": 50, "stream": True}

        async def one() -> str:
            async with gateway.http.stream("POST", C, json=body) as reply:
                return (await reply.aread()).decode()

        live = [asyncio.create_task(one()) for _ in range(10)]
        while len(gateway.scheduler.running) < 10:
            await asyncio.sleep(0.01)
        gateway.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        refused = await gateway.http.post(C, json={"prompt": "x"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert "retry-after" in refused.headers
        assert (await gateway.http.get("/ready")).status_code == 503
        assert (await gateway.http.get("/live")).status_code == 200
        for text in await asyncio.gather(*live):
            events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
            assert text.endswith("data: [DONE]\n\n")
            assert events[-1]["choices"][0]["finish_reason"] == "length"
        begin_s = time.perf_counter()
        assert await gateway.process.wait() == 0
        assert time.perf_counter() - begin_s < 6


async def test_b079_what_outlives_the_drain_gets_an_error_event(tokenizer: Tokenizer) -> None:
    async with gateway_process(tokenizer, "--drain-timeout-s", "0.3") as gateway:
        gateway.scheduler.script = lambda request: Script([5] * 5, hang=True)
        async with gateway.http.stream("POST", C, json={"prompt": "x", "max_tokens": 50, "stream": True}) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            gateway.process.send_signal(signal.SIGTERM)
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2][6:])["error"]["code"] == "draining"
        assert await gateway.process.wait() == 0


async def test_b096_giant_headers_cost_no_memory(tokenizer: Tokenizer) -> None:
    async with gateway_process(tokenizer) as gateway:
        rss = psutil.Process(gateway.process.pid).memory_info
        before = rss().rss
        for start in (
            b"GET /live HTTP/1.1\r\nHost: x\r\nX: ",
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n",
        ):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            with contextlib.suppress(ConnectionError):
                writer.write(start)
                for _ in range(1600):
                    writer.write(b"a" * 65536)
                    await writer.drain()
            writer.close()
        assert rss().rss - before < 5 * 1024 * 1024
        assert (await gateway.http.get("/live")).status_code == 200


async def test_b058_thirty_streams_dropped_at_once_do_not_delay_probes(tokenizer: Tokenizer) -> None:
    async with gateway_process(tokenizer) as gateway:
        gateway.scheduler.step_s = 0.005
        gateway.scheduler.script = lambda request: Script([5] * 400)
        request = json.dumps({"prompt": "x", "max_tokens": 400, "stream": True}).encode()
        head = f"POST {C} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(request)}\r\n\r\n".encode()
        writers = []
        for _ in range(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(head + request)
            writers.append((reader, writer))
        for reader, _ in writers:
            await reader.readuntil(b"data: ")
        for _, writer in writers:
            writer.transport.abort()
        slowest_s = 0.0
        for _ in range(20):
            begin_s = time.perf_counter()
            assert (await gateway.http.get("/live")).status_code == 200
            slowest_s = max(slowest_s, time.perf_counter() - begin_s)
            await asyncio.sleep(0.01)
        assert slowest_s < 0.5
        async with asyncio.timeout(5):
            while gateway.scheduler.running:
                await asyncio.sleep(0.01)
