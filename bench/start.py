"""`drumline bench start`: from the start of `drumline serve` to the first token of a streamed answer, kernels compiled before."""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from bench.client import BenchError
from bench.server import Server, cpu_by_service, handed_on, started
from bench.start_config import StartSettings
from drumline import settings


@dataclass(frozen=True)
class Start:
    """One start, seconds since the command was given; `cpu_s` is what each process had used by the first token."""

    ready_s: float
    first_token_s: float
    cpu_s: dict[str, float]


def main(argv: Sequence[str]) -> int:
    """Starts the server again and again and prints the table; 1 = a start failed."""
    given = list(argv)
    own, flags = handed_on(given)
    wanted = settings.load(StartSettings, section="start", argv=own)
    try:
        # The first one compiles kernels if need be, and reads files into memory: not counted.
        starts = [asyncio.run(measured(flags)) for _ in range(wanted.repetitions + 1)][1:]
    except (BenchError, httpx.HTTPError, OSError) as error:
        Console(stderr=True).print(f"bench: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    Console(width=None if sys.stdout.isatty() else 120).print(table_of(starts))
    if wanted.json_file:
        wanted.json_file.write_text(json.dumps([asdict(start) for start in starts], indent=1), encoding="utf-8")
    return 0


async def measured(flags: Sequence[str]) -> Start:
    """One start and one stop. Raises BenchError when no token comes."""
    began_s = time.monotonic()
    async with started(flags) as server:
        ready_s = time.monotonic() - began_s
        await _first_token(server)
        first_token_s = time.monotonic() - began_s
        return Start(ready_s, first_token_s, _cpu_s(server))


async def _first_token(server: Server) -> None:
    """Waits for the first piece of text of an answer."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as http:
        model = (await http.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
        messages = [{"role": "user", "content": "What is the capital of Germany?"}]
        body = {"model": model, "messages": messages, "stream": True, "max_tokens": 8, "temperature": 0}
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                event = line.removeprefix("data: ")
                if event.startswith("{") and json.loads(event)["choices"][0]["delta"].get("content"):
                    return
    raise BenchError("the answer ended without a token")


def _cpu_s(server: Server) -> dict[str, float]:
    if server.launcher_pid is None:
        return {}
    times = psutil.Process(server.launcher_pid).cpu_times()
    return {"launcher": float(times.user + times.system), **cpu_by_service(server)}


def table_of(starts: Sequence[Start]) -> Table:
    """A line for each start, and their medians."""
    names = list(starts[0].cpu_s)
    table = Table(
        "start", "ready, s", "first token, s", *(f"{name}, CPU s" for name in names), title="drumline serve, kernels cached"
    )
    rows = [(start.ready_s, start.first_token_s, *(start.cpu_s[name] for name in names)) for start in starts]
    labelled = [*enumerate(rows, 1), ("median", tuple(map(statistics.median, zip(*rows, strict=True))))]
    for label, row in labelled:
        table.add_row(str(label), *(f"{value:.2f}" for value in row))
    return table
