"""Servers that speak OpenAI's completions API over HTTP: Drumline itself, vLLM, llama.cpp."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import httpx

from bench.client import BenchError, Streamed, Target, run_all
from bench.peers_contestant import Contestant, Site, ended, spawned
from bench.server import Server, started
from bench.workloads import Request

_SCORE_S: Final = 120.0


class OverHttp:
    """As Contestant."""

    def __init__(self, server: Server, model: str) -> None:
        self.server = server
        self.target = Target(server.url, model)

    async def run(self, streams: Sequence[Sequence[Request]]) -> Sequence[Streamed]:
        return await run_all(self.target, streams)

    async def score(self, window: Sequence[int]) -> Sequence[float]:
        body = {"model": self.target.model, "prompt": list(window), "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        async with httpx.AsyncClient(trust_env=False, timeout=_SCORE_S) as http:
            reply = await http.post(f"{self.server.url}/v1/completions", json=body)
        if reply.status_code != httpx.codes.OK:
            raise BenchError(f"no log-probabilities of a prompt: {reply.text[:200]}")
        logprobs: list[float] = reply.json()["choices"][0]["logprobs"]["token_logprobs"]
        return logprobs[1 : len(window)]


@asynccontextmanager
async def drumline(site: Site, flags: Sequence[str]) -> AsyncIterator[Contestant]:
    """Drumline with these flags on the same model file."""
    async with started([*flags, "--model", str(site.model)], log=site.log) as server:
        yield OverHttp(server, await model_of(server.url))


@asynccontextmanager
async def served(
    site: Site, command: Sequence[str], *, port: int, ready_s: float, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Contestant]:
    """A peer's server on this port, once its /health says so. Raises BenchError."""
    url = f"http://127.0.0.1:{port}"
    async with spawned(command, log=site.log, environ=environ) as process:
        await _healthy(url, process, site, ready_s=ready_s)
        yield OverHttp(Server(url, process.pid, whole=True), await model_of(url))


async def model_of(url: str) -> str:
    """The name by which the server knows its model."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        return str((await http.get(f"{url}/v1/models")).raise_for_status().json()["data"][0]["id"])


async def _healthy(url: str, process: asyncio.subprocess.Process, site: Site, *, ready_s: float) -> None:
    deadline = time.monotonic() + ready_s
    async with httpx.AsyncClient(trust_env=False, timeout=10) as http:
        while time.monotonic() < deadline:
            if process.returncode is not None:
                raise ended(process, site.log)
            try:
                if (await http.get(f"{url}/health")).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass  # not listening yet
            await asyncio.sleep(0.2)
    raise BenchError(f"it was not ready after {ready_s:g} s")
