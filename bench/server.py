"""The server under test: started for the run or found at a URL, and what its processes use."""

import asyncio
import contextlib
import os
import random
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench.client import BenchError
from bench.processors import cpu_s_of, machine_busy_s
from launcher import child

_SERVICES: Final = {"gateway": "gateway", "scheduler_svc": "scheduler", "executor_svc": "executor"}
"""Module on a service's command line -> its name here."""
_STOP_S: Final = 60.0
_NAMED_PORTS: Final = (20_000, 32_000)


def handed_on(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(our own arguments, those behind --, which are for `drumline serve`)."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


@dataclass(frozen=True)
class Server:
    """What is measured. `launcher_pid` and `metrics_url` (the scheduler's) are None for a server that is somebody else's.

    `whole`: a peer of ours; its first process and all below it count as one service, `server`.
    """

    url: str
    launcher_pid: int | None = None
    metrics_url: str | None = None
    whole: bool = False


@dataclass(frozen=True)
class Idle:
    """Seconds, all executors: without a plan while a row could run, and in which a row could run."""

    idle_s: float = 0.0
    runnable_s: float = 0.0

    def share_since(self, before: "Idle") -> float | None:
        """Idle share of the time in between, 0..1; None = nothing could run, or nothing is known."""
        runnable_s = self.runnable_s - before.runnable_s
        return max(0.0, self.idle_s - before.idle_s) / runnable_s if runnable_s > 0 else None


@dataclass(frozen=True)
class Cost:
    """What a stretch of time cost; None where the server's processes are not ours to look into."""

    wall_s: float
    busy_s: float
    cpu_s: dict[str, float] | None
    rss_bytes: dict[str, int] | None
    idle_share: float | None

    def others_share(self, *, client_s: float) -> float:
        """Share of the machine that went to neither the server nor the client, 0..1; 0 when the server's own share is not known."""
        if self.cpu_s is None:
            return 0.0
        return max(0.0, self.busy_s - sum(self.cpu_s.values()) - client_s) / (self.wall_s * (os.cpu_count() or 1))


class Watch:
    """Reads processor time, memory and idle time of a server before and after a run."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._began_s = self._busy_s = 0.0
        self._cpu_s: dict[str, float] = {}
        self._idle = Idle()

    async def begin(self) -> None:
        """Remembers where things stand."""
        self._idle = await self._idle_so_far()
        self._cpu_s, self._busy_s, self._began_s = cpu_by_service(self._server), machine_busy_s(), time.monotonic()

    async def end(self) -> Cost:
        """What it cost since `begin`."""
        wall_s = time.monotonic() - self._began_s
        busy_s, cpu_s = machine_busy_s() - self._busy_s, cpu_by_service(self._server)
        ours = self._server.launcher_pid is not None
        return Cost(
            wall_s=wall_s,
            busy_s=busy_s,
            cpu_s={name: cpu_s[name] - self._cpu_s.get(name, 0.0) for name in cpu_s} if ours else None,
            rss_bytes={name: _rss(processes) for name, processes in _processes(self._server).items()} if ours else None,
            idle_share=(await self._idle_so_far()).share_since(self._idle),
        )

    async def _idle_so_far(self) -> "Idle":
        """The scheduler's own account, from its metrics; empty when they are not ours to read."""
        if not self._server.metrics_url:
            return Idle()
        async with httpx.AsyncClient(trust_env=False) as http:
            text = (await http.get(self._server.metrics_url)).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return Idle(
            *(sum(s.value for s in samples if s.name == f"drumline:executor_{name}_seconds_total") for name in ("idle", "runnable"))
        )


def _processes(server: Server) -> dict[str, list[psutil.Process]]:
    if server.whole and server.launcher_pid is not None:
        first = psutil.Process(server.launcher_pid)
        return {"server": [first, *first.children(recursive=True)]}
    found: dict[str, list[psutil.Process]] = {name: [] for name in _SERVICES.values()}
    if server.launcher_pid is not None:
        for process in psutil.Process(server.launcher_pid).children(recursive=True):
            for word in process.cmdline():
                if word in _SERVICES:
                    found[_SERVICES[word]].append(process)
                    break
    return found


def cpu_by_service(server: Server) -> dict[str, float]:
    """Processor seconds of each service of a server that was started here; 0 for one that was not."""
    return {name: sum(cpu_s_of(process) for process in processes) for name, processes in _processes(server).items()}


def _rss(processes: Sequence[psutil.Process]) -> int:
    return sum(int(process.memory_info().rss) for process in processes)


@asynccontextmanager
async def started(
    flags: Sequence[str], *, environ: Mapping[str, str] | None = None, log: Path | None = None
) -> AsyncIterator[Server]:
    """Runs `drumline serve` on a free port, the scheduler's metrics on another; ends it with a drain. Raises BenchError.

    `environ` is set on top of this process's own; `log` gets what the services say. The server has a session of its own: a terminal
    that hangs up does not reach it, and the kernel ends it when this process is gone.
    """
    metrics_port = free_port()
    serve = [sys.executable, "-P", "-m", "launcher", "serve", "--port", "0", "--log-level", "warning", *flags]
    command = [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *serve]
    env = os.environ | (environ or {}) | {"DRUMLINE_SCHEDULER_METRICS_PORT": str(metrics_port)}
    with contextlib.ExitStack() as files:
        errors = files.enter_context(log.open("ab")) if log else None
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=env,
            start_new_session=True,
        )
        try:
            yield Server(await _url_of(process), process.pid, f"http://127.0.0.1:{metrics_port}/metrics")
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """By its own id: the launcher drains its services, and the kernel ends them if it is killed."""
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.communicate()
    except TimeoutError:
        process.kill()
    except asyncio.CancelledError:
        process.kill()
        raise


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, for somebody who binds it in a second. It lies below those that the system gives
    to whoever names none (32,768 on), one of whom would otherwise get it meanwhile now and then."""
    while True:
        port = random.randrange(*_NAMED_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


async def _url_of(process: asyncio.subprocess.Process) -> str:
    """The URL of the readiness line."""
    if process.stdout is None:
        raise BenchError("no pipe from drumline serve")
    async for line in process.stdout:
        words = line.decode().split()
        if words[:2] == ["READY", "serve"]:
            return words[2]
    raise BenchError("drumline serve ended before it was ready; its log says why")
