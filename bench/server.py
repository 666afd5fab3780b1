"""The server under test: started for the run or found at a URL, and what its processes use."""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx
import psutil

from bench.client import BenchError

_SERVICES: Final = {"gateway": "gateway", "scheduler_svc": "scheduler", "executor_svc": "executor"}
"""Module on a service's command line -> its name here."""
_STOP_S: Final = 60.0


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
    """Reads processor time, memory and idle share of a server before and after a run."""

    def __init__(self, http: httpx.AsyncClient, *, launcher_pid: int | None) -> None:
        """`launcher_pid` is that of a `drumline serve` of ours, or None for a server that is somebody else's.

        Make it right before the first request: the idle share that the status shows counts from the first plan.
        """
        self._http = http
        self._launcher_pid = launcher_pid
        self._first_plan_s = time.monotonic()
        self._began_s = self._busy_s = 0.0
        self._cpu_s: dict[str, float] = {}
        self._idle_s: float | None = None

    async def begin(self) -> None:
        """Remembers where things stand."""
        self._idle_s = await self._idle_so_far()
        self._cpu_s, self._busy_s, self._began_s = self._cpu(), _machine_busy_s(), time.monotonic()

    async def end(self) -> Cost:
        """What it cost since `begin`."""
        wall_s = time.monotonic() - self._began_s
        busy_s, cpu_s = _machine_busy_s() - self._busy_s, self._cpu()
        idle_s = await self._idle_so_far()
        ours = self._launcher_pid is not None
        return Cost(
            wall_s=wall_s,
            busy_s=busy_s,
            cpu_s={name: cpu_s[name] - self._cpu_s.get(name, 0.0) for name in cpu_s} if ours else None,
            rss_bytes={name: _rss(processes) for name, processes in self._processes().items()} if ours else None,
            idle_share=None if idle_s is None or self._idle_s is None else max(0.0, idle_s - self._idle_s) / wall_s,
        )

    async def _idle_so_far(self) -> float | None:
        """Idle seconds of the average executor since its first plan; None = not shown, or its first plan was before our time."""
        if self._launcher_pid is None:
            return None
        reply = await self._http.get("/status")
        if reply.status_code != httpx.codes.OK:
            return None
        shares = [e["idle_fraction"] for e in reply.json().get("executors", []) if e.get("idle_fraction") is not None]
        return float(statistics.fmean(shares)) * (time.monotonic() - self._first_plan_s) if shares else None

    def _processes(self) -> dict[str, list[psutil.Process]]:
        found: dict[str, list[psutil.Process]] = {name: [] for name in _SERVICES.values()}
        if self._launcher_pid is not None:
            for process in psutil.Process(self._launcher_pid).children(recursive=True):
                for word in process.cmdline():
                    if word in _SERVICES:
                        found[_SERVICES[word]].append(process)
                        break
        return found

    def _cpu(self) -> dict[str, float]:
        return {name: sum(_cpu_s(process) for process in processes) for name, processes in self._processes().items()}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _rss(processes: Sequence[psutil.Process]) -> int:
    return sum(int(process.memory_info().rss) for process in processes)


def _machine_busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


@asynccontextmanager
async def started(flags: Sequence[str]) -> AsyncIterator[tuple[str, int]]:
    """Runs `drumline serve` on a free port; gives its URL and process id, and ends it with a drain. Raises BenchError."""
    command = [sys.executable, "-m", "launcher", "serve", "--port", "0", "--log-level", "warning", *flags]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield await _url_of(process), process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.communicate(), _STOP_S)
        except TimeoutError:
            process.kill()


async def _url_of(process: asyncio.subprocess.Process) -> str:
    """The URL of the readiness line."""
    if process.stdout is None:
        raise BenchError("no pipe from drumline serve")
    async for line in process.stdout:
        words = line.decode().split()
        if words[:2] == ["READY", "serve"]:
            return words[2]
    raise BenchError("drumline serve ended before it was ready; its log is above")
