"""A whole scheduler in this process, on a real port, in front of scripted executors; and a recorder that keeps frames in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from scheduler_svc.config import SchedulerSettings
from scheduler_svc.process import SchedulerProcess, running
from tests.support.scripted_executor import ScriptedExecutor

QUICK = {
    "stall_timeout_s": 0.2,
    "probe_timeout_s": 0.3,
    "connect_timeout_s": 2.0,
    "reconnect_max_s": 0.2,
    "resolve_interval_s": 0.1,
    "port": 0,
}
"""Liveness in tenths of seconds instead of seconds: the same code, sooner."""


class MemoryRecorder:
    """The Recorder port, in memory: `frames` as (kind, *payload), `dumps` as reasons."""

    def __init__(self, **_: object) -> None:
        self.frames: list[tuple] = []
        self.dumps: list[str] = []

    def handshake(self, executor_id: int, address: str, wire: bytes) -> None:
        self.frames.append(("HANDSHAKE", executor_id, address, wire))

    def arrival(self, first_key: int, arrival_ns: int, default_timeout_ms: int, wire: bytes) -> None:
        self.frames.append(("ARRIVAL", first_key, arrival_ns, default_timeout_ms, wire))

    def abort(self, keys: Sequence[int]) -> None:
        self.frames.append(("ABORT", list(keys)))

    def tick(self, executor_id: int, now_ns: int) -> None:
        self.frames.append(("TICK", executor_id, now_ns))

    def result(self, executor_id: int, wire: bytes) -> None:
        self.frames.append(("RESULT", executor_id, wire))

    def drain(self, executor_id: int) -> None:
        self.frames.append(("DRAIN", executor_id))

    def lost(self, executor_id: int, reason: str) -> None:
        self.frames.append(("LOST", executor_id, reason))

    def plan(self, executor_id: int, wire: bytes) -> None:
        self.frames.append(("PLAN", executor_id, wire))

    def dump(self, reason: str) -> Path | None:
        self.dumps.append(reason)
        return None

    def close(self) -> None:
        pass

    def kinds(self, *wanted: str) -> list[str]:
        return [frame[0] for frame in self.frames if frame[0] in wanted]

    def lost_reasons(self) -> list[str]:
        return [frame[2] for frame in self.frames if frame[0] == "LOST"]


@contextlib.asynccontextmanager
async def house(*executors: ScriptedExecutor, num_ready: int | None = None, **options) -> AsyncIterator[SchedulerProcess]:
    """A scheduler that has linked `num_ready` executors (all of them by default); at its end its books must be sound."""
    parts = {key: options.pop(key) for key in ("clock", "resolve", "epoch", "max_backlog") if key in options}
    addresses = options.pop("executor", tuple(one.address for one in executors))
    settings = SchedulerSettings(**(QUICK | {"executor": addresses} | options))
    async with running(SchedulerProcess(settings, make_recorder=MemoryRecorder, **parts)) as process:
        await until(lambda: len(process.engine.links) >= (len(executors) if num_ready is None else num_ready))
        yield process
        if not process.failed.done():
            process.core.check_invariants()
        for executor in executors:
            assert executor.violations == []


def address_of(process: SchedulerProcess) -> str:
    """Where its gateways dial."""
    return f"127.0.0.1:{process.port}"


async def until(condition, *, timeout_s: float = 10.0) -> None:
    """Waits until `condition()`; polls, so it needs no hook in what is tested."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def idle(process: SchedulerProcess) -> None:
    """Waits until no sequence is left, then demands exact books: no row, no block, no route (O8)."""
    await until(lambda: process.view().num_resident == 0 and process.view().num_waiting == 0 and not len(process.engine.routes))
    await until(lambda: all(not link.in_flight for link in process.engine.links.values()))
    process.core.check_invariants()
    for one in process.view().executors:
        assert (one.num_resident, one.num_blocks_used, one.plans_in_flight) == (0, 0, 0), one
