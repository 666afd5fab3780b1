"""The scheduler's process of `bench step`: a real one that notes its processor time at each result.

`python -m bench.step_scheduler HOST:PORT ROWS` prints its port; a line on its standard input is answered with what it noted, as
JSON.
"""

import asyncio
import json
import sys
import time
from typing import Any, Final

import numpy as np
import uvloop

from bench.echo import PROMPT_LENGTHS
from scheduler_svc.config import SchedulerSettings
from scheduler_svc.process import SchedulerProcess, running
from scheduler_svc.recording import FileRecorder

WARM_UP: Final = 100
"""Steps left out behind the last one that was not steady."""


class Meter(FileRecorder):
    """The real recorder; notes CPU and wall time at each result, and the size of each plan."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.marks: list[tuple[int, int]] = []
        self.plan_bytes: list[int] = []

    def result(self, executor_id: int, wire: bytes) -> None:
        """See `Recorder`."""
        self.marks.append((time.process_time_ns(), time.monotonic_ns()))
        super().result(executor_id, wire)

    def plan(self, executor_id: int, wire: bytes) -> None:
        """See `Recorder`."""
        self.plan_bytes.append(len(wire))
        super().plan(executor_id, wire)


def settings_of(address: str, *, rows: int) -> SchedulerSettings:
    """Room for all rows, at once if need be."""
    return SchedulerSettings(
        executor=(address,), port=0, max_num_seqs=rows, max_num_batched_tokens=rows * PROMPT_LENGTHS, max_waiting_requests=rows
    )


async def serve(address: str, *, rows: int) -> None:
    """Until the line came and was answered."""
    process = SchedulerProcess(settings_of(address, rows=rows), make_recorder=Meter)
    async with running(process):
        print(process.port, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        recorder = process.recorder
        steady = steady_from(recorder.plan_bytes) if isinstance(recorder, Meter) else 0
        marks = recorder.marks[steady + WARM_UP :] if isinstance(recorder, Meter) else []
        print(json.dumps({"marks": marks}), flush=True)


def steady_from(plan_bytes: list[int]) -> int:
    """The plan after the last that brought rows: one of steady decode, which repeats them, is far smaller. Those of the second half
    are not looked at: the gateway's leaving makes a large one too."""
    large = 4 * np.median(plan_bytes)
    return max((step for step, size in enumerate(plan_bytes[: len(plan_bytes) // 2]) if size > large), default=-1) + 1


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], rows=int(sys.argv[2])))
