"""What one step costs the scheduler, wire included: a real scheduler process between an executor that answers at once (or after
`--step-ms`) and a gateway that reads every token, each a process of its own, over gRPC.

`python -m bench.scheduler_step [--rows 256] [--steps 600] [--step-ms 0]`

CPU per step is the whole scheduler process (core with prefix caching, recording ring, gRPC threads, delivery) from one result to
the next. With `--step-ms` above 0 the executor's own idle share says whether scheduling and wire hide behind the device.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import grpc.aio
import numpy as np
import uvloop

from drumline.common.v1.common_pb2 import SamplingParams
from drumline.executor.v1 import executor_pb2 as ex
from drumline.executor.v1.executor_pb2_grpc import ExecutorServicer, add_ExecutorServicer_to_server
from drumline.limits import MAX_SEQUENCES_PER_REQUEST
from drumline.plan.v1.plan_pb2 import LAYOUT_PAGED, StepPlan, StepResult, StepTiming
from drumline.rpc import new_server, open_channel
from drumline.scheduler.v1 import scheduler_pb2 as sch
from drumline.scheduler.v1.scheduler_pb2_grpc import SchedulerStub
from scheduler_svc.config import SchedulerSettings
from scheduler_svc.process import SchedulerProcess, running
from scheduler_svc.recording import FileRecorder

WARM_UP = 100
"""Steps left out behind the last one that was not steady."""
PROMPT_LENGTHS = 256
"""Prompts of 1 to this many tokens, so that work which a sequence causes now and then falls on every step alike."""
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


def _most_tokens(steps: int) -> int:
    """Output tokens that no sequence reaches: those admitted first run ahead of the last."""
    return 2 * steps + 1000


class EchoExecutor(ExecutorServicer):
    """Emits one token per row and step; sequences never end. Steps take `step_ns`."""

    def __init__(self, *, rows: int, steps: int, step_ns: int) -> None:
        length = _most_tokens(steps) + 2 * PROMPT_LENGTHS
        self.caps = ex.GetCapabilitiesResponse(
            protocol_version=1,
            min_protocol_version=1,
            instance_id="echo",
            model_digest="echo",
            model_name="echo",
            block_size=16,
            num_blocks=rows * (length // 16 + 2),
            max_model_len=length,
            max_num_seqs=rows,
            max_num_batched_tokens=rows * PROMPT_LENGTHS,
            vocab_size=50_000,
            layouts=[LAYOUT_PAGED],
            ragged=ex.RaggedDeclaration(granted=True, reason="echo"),
        )
        self._step_ns = step_ns
        self._rows = np.zeros(0, np.int64)
        self._lengths = np.zeros(rows, np.int64)
        self._tokens: list[int] = []
        self._num_blocks = np.zeros(rows, np.int64)
        self._ended_ns = 0

    async def GetCapabilities(self, request: Any, context: Any) -> Any:  # noqa: N802
        """See the proto."""
        return self.caps

    async def GetModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        """See the proto."""
        return ex.GetModelResponse(model_digest="echo", model_name="echo")

    async def RunPlans(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        """Reads ahead, so that idle time is only time without a plan in hand."""
        opening = (await context.read()).open
        await context.write(ex.RunPlansResponse(opened=ex.SessionOpened(session_epoch=opening.session_epoch)))
        queue: asyncio.Queue[tuple[int, StepPlan]] = asyncio.Queue(maxsize=16)
        worker = asyncio.create_task(self._work(queue, context))
        try:
            while (message := await context.read()) is not _EOF:
                await queue.put((time.monotonic_ns(), message.plan))
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

    async def _work(self, queue: "asyncio.Queue[tuple[int, StepPlan]]", context: Any) -> None:
        while True:
            arrived_ns, plan = await queue.get()
            start_ns = time.monotonic_ns()
            idle_ns = max(0, arrived_ns - self._ended_ns) if self._ended_ns else 0
            if self._step_ns:
                await asyncio.sleep(self._step_ns / 1e9)
            result = self._run(plan)
            self._ended_ns = time.monotonic_ns()
            timing = StepTiming(queue_ns=start_ns - arrived_ns, forward_ns=self._ended_ns - start_ns, idle_ns=idle_ns)
            result.timing.CopyFrom(timing)
            await context.write(ex.RunPlansResponse(result=result))

    def _run(self, plan: StepPlan) -> StepResult:
        result = StepResult(step_id=plan.step_id, session_epoch=plan.session_epoch)
        self._num_blocks[[*plan.freed_slots, *plan.aborted_slots]] = 0
        if plan.repeat_rows or plan.slot:
            self._run_rows(plan)
            result.token_ids.extend(self._tokens)
            result.length.extend(self._lengths[self._rows].tolist())
        result.num_blocks_in_use = int(self._num_blocks.sum())
        return result

    def _run_rows(self, plan: StepPlan) -> None:
        num_tokens: Any = 1
        if plan.slot:
            self._rows = np.array(plan.slot, np.int64)
            num_tokens = np.array(plan.num_tokens, np.int64)
            self._lengths[[new.slot for new in plan.new_sequences]] = 0
            self._tokens = list(range(1000, 1000 + len(self._rows)))
        self._lengths[self._rows] += num_tokens
        np.add.at(self._num_blocks, self._rows[list(plan.block_row)], 1)


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


async def run_scheduler(address: str, *, rows: int) -> None:
    """The scheduler's process: READY line, then one JSON line once stdin closes."""
    settings = SchedulerSettings(executor=(address,), port=0, max_num_seqs=rows, max_num_batched_tokens=rows * PROMPT_LENGTHS)
    process = SchedulerProcess(settings, make_recorder=Meter)
    async with running(process):
        print(process.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        idle = process.view().executors[0].accounts
        recorder = process.recorder
        steady = _steady_from(recorder.plan_bytes) if isinstance(recorder, Meter) else 0
        marks = recorder.marks[steady + WARM_UP :] if isinstance(recorder, Meter) else []
        wire_us = idle.wire_ns / 1e3 / max(1, idle.num_steps)
        print(json.dumps({"marks": marks, "idle": idle.idle_fraction(), "wire_us": wire_us}), flush=True)


def _steady_from(plan_bytes: list[int]) -> int:
    """The plan after the last that brought rows: one of steady decode, which repeats them, is far smaller. Those of the second half
    are not looked at: the gateway's leaving makes a large one too."""
    large = 4 * np.median(plan_bytes)
    return max((step for step, size in enumerate(plan_bytes[: len(plan_bytes) // 2]) if size > large), default=-1) + 1


async def run_executor(*, rows: int, steps: int, step_ms: float) -> None:
    """The executor's process: its port, then until stdin closes."""
    server = new_server()
    add_ExecutorServicer_to_server(EchoExecutor(rows=rows, steps=steps, step_ns=int(step_ms * 1e6)), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


async def read_tokens(port: int, *, rows: int, steps: int) -> int:
    """The gateway: submits `rows` sequences and reads until `steps` tokens of each came; returns the messages read."""
    channel = open_channel(f"127.0.0.1:{port}")
    stub = SchedulerStub(channel)
    while not await _is_ready(stub):  # noqa: ASYNC110 - polls another process
        await asyncio.sleep(0.05)
    call: Any = stub.Serve()  # type: ignore[call-arg]
    await call.write(sch.ServeRequest(hello=sch.Hello(protocol_version=1, gateway_id="bench")))
    for first in range(1, rows + 1, MAX_SEQUENCES_PER_REQUEST):
        handles = range(first, min(first + MAX_SEQUENCES_PER_REQUEST, rows + 1))
        await call.write(sch.ServeRequest(submit=sch.Submit(sequences=[_sequence(handle, steps=steps) for handle in handles])))
    num_tokens = num_messages = 0
    while num_tokens < rows * steps:
        message = await call.read()
        num_tokens += len(message.tokens.token_ids)
        num_messages += bool(message.tokens.token_ids)
    call.cancel()
    await channel.close(None)
    return num_messages


def _sequence(handle: int, *, steps: int) -> sch.SequenceRequest:
    sampling = SamplingParams(max_tokens=_most_tokens(steps), seed=handle)
    return sch.SequenceRequest(handle=handle, prompt_token_ids=[handle] * (1 + handle % PROMPT_LENGTHS), sampling=sampling)


async def _is_ready(stub: Any) -> bool:
    status = await stub.GetStatus(sch.GetStatusRequest())
    return bool(status.executors) and status.executors[0].state == "ready"


def _child(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench.scheduler_step", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _first_line(child: "subprocess.Popen[str]") -> str:
    if child.stdin is None or child.stdout is None:
        raise RuntimeError("no pipes")
    return child.stdout.readline().strip()


def measure(*, rows: int, steps: int, step_ms: float) -> str:
    """Runs all three and returns one line of results."""
    common = ("--rows", str(rows), "--steps", str(steps), "--step-ms", str(step_ms))
    executor = _child("--role", "executor", *common)
    scheduler = _child("--role", "scheduler", "--address", f"127.0.0.1:{_first_line(executor)}", *common)
    try:
        port = int(_first_line(scheduler))
        num_messages = uvloop.run(read_tokens(port, rows=rows, steps=steps))
        answer, _ = scheduler.communicate(timeout=30)
        executor.communicate(timeout=30)
    finally:
        scheduler.kill()
        executor.kill()
    report = json.loads(answer.splitlines()[-1])
    marks = np.array(report["marks"][: steps - WARM_UP])
    cpu_us, wall_us = np.diff(marks, axis=0).T / 1e3
    idle = "NA (no step)" if report["idle"] is None else f"{100 * report['idle']:.2f}%"
    return (
        f"{rows:5d} rows  step {step_ms:g} ms  cpu {_spread(cpu_us)}  wall {_spread(wall_us)}  wire mean {report['wire_us']:.0f} us"
        f"  steps {len(cpu_us)}  executor idle {idle}  messages/step {num_messages / steps:.2f}"
    )


def _spread(micros: Any) -> str:
    """p10 (an undisturbed step), p50, p99 and the mean."""
    p10, p50, p99 = np.percentile(micros, [10, 50, 99])
    return f"p10 {p10:.0f} p50 {p50:.0f} p99 {p99:.0f} mean {micros.mean():.0f} us"


def main(argv: list[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--role", choices=("scheduler", "executor"), help=argparse.SUPPRESS)
    parser.add_argument("--address", default="", help=argparse.SUPPRESS)
    told = parser.parse_args(argv)
    if told.role == "executor":
        uvloop.run(run_executor(rows=told.rows, steps=told.steps, step_ms=told.step_ms))
    elif told.role == "scheduler":
        uvloop.run(run_scheduler(told.address, rows=told.rows))
    else:
        print(measure(rows=told.rows, steps=told.steps, step_ms=told.step_ms))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
