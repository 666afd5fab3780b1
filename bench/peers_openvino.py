"""OpenVINO GenAI, in a process of its own and asked over its standard input: it has no HTTP server."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from bench import peers_llama as llama
from bench.client import BenchError, Streamed
from bench.peers_contestant import Contestant, Peer, Site, ended, spawned
from bench.peers_install import Install, installed
from bench.server import Server
from bench.workloads import Request

_WORKER: Final = Path(__file__).with_name("peers_openvino_worker.py")
_CACHE_GIB: Final = 4
_READY_S: Final = 120.0


class _InProcess:
    """As Contestant."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self.server = Server(url="", launcher_pid=process.pid, whole=True)

    async def ready(self) -> None:
        """Once the model is loaded. Raises BenchError."""
        async with asyncio.timeout(_READY_S):
            line = await self._line()
        if "ready" not in line:
            raise BenchError("the worker's first line is not its readiness")

    async def run(self, streams: Sequence[Sequence[Request]]) -> Sequence[Streamed]:
        told = await self._ask({"streams": [[dataclasses.asdict(request) for request in stream] for stream in streams]})
        answers = [Streamed(sent_s, times[-1], times, len(times)) for sent_s, times in told["answers"]]
        wanted = sum(request.num_output_tokens for stream in streams for request in stream)
        if (got := sum(answer.num_output_tokens for answer in answers)) != wanted:
            raise BenchError(f"asked for {wanted} tokens, got {got}")
        return answers

    async def score(self, window: Sequence[int]) -> Sequence[float]:
        logprobs: list[float] = (await self._ask({"score": list(window)}))["logprobs"]
        return logprobs

    async def _ask(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._process.stdin is None:
            raise BenchError("no pipe to the worker")
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        await self._process.stdin.drain()
        return await self._line()

    async def _line(self) -> Mapping[str, Any]:
        if self._process.stdout is None:
            raise BenchError("no pipe from the worker")
        if not (line := await self._process.stdout.readline()):
            await self._process.wait()
            raise ended(self._process, self._log)
        told: Mapping[str, Any] = json.loads(line)
        return told


@asynccontextmanager
async def _as_shipped(site: Site) -> AsyncIterator[Contestant]:
    async with _standing(site, site.model) as contestant:
        yield contestant


@asynccontextmanager
async def _requantised(site: Site) -> AsyncIterator[Contestant]:
    # llama.cpp's tool makes the file, from the environment beside this one
    tools = await installed(llama.INSTALL, site.python.parents[2] / llama.VENV)
    async with _standing(site, await llama.weights(dataclasses.replace(site, python=tools), "Q8_0")) as contestant:
        yield contestant


@asynccontextmanager
async def _standing(site: Site, model: Path) -> AsyncIterator[Contestant]:
    command = [str(site.python), str(_WORKER), str(model), str(_CACHE_GIB)]
    async with spawned(command, log=site.log, piped=True) as process:
        contestant = _InProcess(process, site.log)
        await contestant.ready()
        yield contestant


_INSTALL: Final = Install("openvino-genai", "2026.4.1.0")
OPENVINO: Final = Peer(
    name="openvino", venv="openvino", weights="the GGUF file", install=_INSTALL, standing=_as_shipped, in_process=True
)
"""Its zero points are whole numbers, those of Q4_1 are not: what it reads is not what the file says, as its perplexity shows."""
OPENVINO_Q8: Final = Peer(
    name="openvino-q8_0",
    venv="openvino",
    weights="requantised to Q8_0",
    install=_INSTALL,
    standing=_requantised,
    in_process=True,
)
