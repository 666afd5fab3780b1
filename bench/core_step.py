"""What the scheduler core costs per step: schedule + update, without wire; all rows decode, alone or beside a long prompt that is
fed in chunks. Prints percentiles in microseconds of CPU time of the scheduling thread; p2 tells what a step costs while neighbours
leave the caches alone.

`python -m bench.core_step [ROWS ...]`
"""

import sys
import time
from typing import Any

import numpy as np

from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import ExecutorInfo, Limits, Plan, Request, StepResult

STEPS = 800
WARM_UP = 32
PROMPT = 100


def measure(num_rows: int, *, num_steps: int = STEPS, chunks: bool = False) -> list[float]:
    """CPU seconds per step of `num_rows` sequences that decode, with `chunks` beside 16 tokens of a prompt in each step; two plans
    in flight, 16-token blocks, prefix caching on."""
    length = max(PROMPT + 2 * num_steps + 128, chunks * 16 * (num_steps + 64))
    info = ExecutorInfo(0, "model", 16, (num_rows + 1) * (length // 16 + 2), length, num_rows + 1, num_rows * PROMPT)
    limits = Limits(max_num_seqs=num_rows + 1, max_num_batched_tokens=num_rows * PROMPT, max_waiting_requests=num_rows + 1)
    core = Scheduler(limits)
    core.add_executor(info)
    # Prompts of different lengths, so that rows fill blocks, and the windows that tokens are gathered in, in different steps.
    for key in range(num_rows):
        core.add_requests([Request(key, "bench", [key + 2] * (PROMPT - key % 64), 2 * num_steps + 96)])
    executor = Echo()
    flying = [executor.run(core, _plan(core)) for _ in range(2)]
    while len(core.executors[0].decoding) < num_rows:
        core.update(0, flying.pop(0))
        flying.append(executor.run(core, _plan(core)))
    if chunks:
        core.executors[0].budget = num_rows + 16
        core.add_requests([Request(num_rows, "bench", [1] * (16 * (num_steps + 32)), 1)])
    seconds = []
    for step in range(num_steps):
        begin = time.thread_time()
        core.update(0, flying.pop(0))
        core.tick(step)
        plan = core.schedule(0)
        seconds.append(time.thread_time() - begin)
        if plan is None:
            break
        flying.append(executor.run(core, plan))
    return seconds[WARM_UP:]


def _plan(core: Scheduler) -> Plan:
    plan = core.schedule(0)
    if plan is None:
        raise RuntimeError("nothing to schedule")
    return plan


class Echo:
    """Answers every plan: one token per row that decodes, true lengths, the block count of the core; arrays, as from the wire."""

    def __init__(self) -> None:
        self._lengths = np.zeros(0, np.int64)
        self._in_use = 0

    def run(self, core: Scheduler, plan: Plan) -> StepResult:
        """The result of a plan whose rows all live; the bench sends no other."""
        self._in_use += len(plan.block_ids)
        flight = core.executors[0].in_flight[-1]
        rows = flight.rows
        if plan.repeat_rows:
            self._lengths = self._lengths + 1
        else:
            self._lengths = core.executors[0].cols.copies()["upper"][rows.slots]
        emitted = [1] * rows.num_decodes + [int(row.is_last) for row in rows.prefills]
        token_ids: Any = np.arange(sum(emitted), dtype=np.uint32)
        num_emitted = [] if all(emitted) else emitted
        result = StepResult(plan.step_id, num_emitted=num_emitted, token_ids=token_ids, lengths=self._lengths)
        result.num_blocks_in_use = self._in_use
        return result


def calibrate() -> float:
    """CPU seconds of a fixed loop: tells how much busy neighbours slow this measurement down."""
    begin, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number
    return time.thread_time() - begin


def main(argv: list[str]) -> int:
    """One line per row count."""
    print(f"a million additions in a loop take {calibrate() * 1e3:.0f} ms of CPU time")
    for rows in [int(text) for text in argv] or [32, 256, 1024, 4096]:
        for chunks in (False, True):
            micros = sorted(second * 1e6 for second in measure(rows, num_steps=STEPS if rows <= 1024 else 200, chunks=chunks))
            p2, p50, p99 = (micros[len(micros) * percent // 100] for percent in (2, 50, 99))
            beside = "beside chunks" if chunks else "alone        "
            print(f"{rows:5d} rows {beside}  p2 {p2:8.1f} us  p50 {p50:8.1f} us  p99 {p99:8.1f} us  steps {len(micros)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
