"""Processor time: of processes, of their event loops, and of the machine."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil


def cpu_s_of(process: psutil.Process) -> float:
    """Seconds of processor time so far, all threads."""
    times = process.cpu_times()
    return float(times.user + times.system)


def machine_busy_s() -> float:
    """Seconds of processor time so far that were not idle, all processors; what a hypervisor took away counts as busy."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process used of one processor over a stretch of time; above 1 = of several.

    Attributes:
        cpu: all its threads.
        loop: its first thread, where the event loop runs.
        waiting: its first thread had work and no processor: others had them all.
    """

    cpu: float
    loop: float
    waiting: float

    @property
    def pressure(self) -> float:
        """How much of the time the event loop had work, 0..1. Near 1 it can do no more."""
        return self.loop + self.waiting


@dataclass(frozen=True, slots=True)
class Used:
    """A stretch of time. `others`: share of the machine that went to no process of ours, `busy` to anybody, 0..1."""

    wall_s: float
    by_process: Mapping[str, Usage]
    busy: float
    others: float


class ProcessorMeter:
    """Reads what named processes use between `begin` and `end`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._began_s = self._busy_s = 0.0
        self._before: dict[str, tuple[float, float, float]] = {}

    def begin(self) -> None:
        """Remembers where things stand."""
        self._before = self._read()
        self._busy_s, self._began_s = machine_busy_s(), time.monotonic()

    def end(self) -> Used:
        """What was used since `begin`."""
        wall_s, busy_s = time.monotonic() - self._began_s, machine_busy_s() - self._busy_s
        usage = {
            name: Usage(*((after - before) / wall_s for after, before in zip(now, self._before[name], strict=True)))
            for name, now in self._read().items()
        }
        machine_s, ours_s = wall_s * (os.cpu_count() or 1), wall_s * sum(one.cpu for one in usage.values())
        return Used(wall_s, usage, busy=min(1.0, busy_s / machine_s), others=max(0.0, busy_s - ours_s) / machine_s)

    def _read(self) -> dict[str, tuple[float, float, float]]:
        return {name: (cpu_s_of(process), *_first_thread_s(process.pid)) for name, process in self._processes.items()}


def _first_thread_s(pid: int) -> tuple[float, float]:
    """Seconds that a process's first thread ran, and waited for a processor; zeros where the system does not tell."""
    try:
        ran_ns, waited_ns, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9
