"""An executor without a model whose steps take a fixed time of an exact clock: what is late at it was late before it."""

import asyncio
import math
import time
from array import array
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio
import numpy as np

from drumline.executor.v1 import executor_pb2 as ex
from drumline.executor.v1.executor_pb2_grpc import ExecutorServicer
from drumline.limits import MAX_PLANS_QUEUED
from drumline.plan.v1.plan_pb2 import LAYOUT_PAGED, StepPlan, StepResult, StepTiming

PROMPT_LENGTHS: Final = 256
"""Prompts have 1 to this many tokens, so that work which a sequence causes now and then falls on every step alike."""
_BLOCK: Final = 16
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one executor saw of a window, ns; one entry a step.

    Attributes:
        gaps: between the end of a step and the moment the next plan was in hand; 0 = it was there already.
        lates: between the end of a step and the moment its result was handed to gRPC. The fake's fault, nobody else's.
        num_tokens: emitted.
    """

    gaps: "array[int]"
    lates: "array[int]"
    num_tokens: int


class EchoExecutor(ExecutorServicer):
    """Emits one token per row and step; sequences end only at their limit.

    A step begins when its plan is there and the step before it has ended, and ends `step_ns` later, whenever this process notices:
    a busy machine makes results late (`Seen.lates`), never the device slow. With `step_ns` 0 a step ends when its result is made.
    """

    def __init__(self, *, name: str, rows: int, max_model_len: int, step_ns: int, phase_ns: int = 0) -> None:
        """`phase_ns` is added to the first step, so that executors which begin together do not end their steps together."""
        self.caps = ex.GetCapabilitiesResponse(
            protocol_version=1,
            min_protocol_version=1,
            instance_id=name,
            model_digest="echo",
            model_name="echo",
            block_size=_BLOCK,
            num_blocks=rows * (max_model_len // _BLOCK + 2),
            max_model_len=max_model_len,
            max_num_seqs=rows,
            max_num_batched_tokens=rows * PROMPT_LENGTHS,
            vocab_size=50_000,
            layouts=[LAYOUT_PAGED],
            ragged=ex.RaggedDeclaration(granted=True, reason="echo"),
        )
        self._step_ns = step_ns
        self._phase_ns = phase_ns
        self._ended_ns = 0
        self._plans: asyncio.Queue[tuple[int, StepPlan]] = asyncio.Queue(maxsize=MAX_PLANS_QUEUED)
        self._watched = False
        self._seen = Seen(array("q"), array("q"), 0)
        self._num_tokens = 0
        self._rows = np.zeros(0, np.int64)
        self._lengths = np.zeros(rows, np.int64)
        self._tokens: list[int] = []
        self._num_blocks = np.zeros(rows, np.int64)

    def begin(self) -> None:
        """A window begins."""
        self._watched, self._num_tokens = True, 0
        self._seen = Seen(array("q"), array("q"), 0)

    def end(self) -> Seen:
        """The window ends. A gap that has not ended counts as long as it is by now."""
        self._watched = False
        open_ns = time.monotonic_ns() - self._ended_ns
        if open_ns > 0 and self._plans.empty():
            self._seen.gaps.append(open_ns)
        return Seen(self._seen.gaps, self._seen.lates, self._num_tokens)

    async def GetCapabilities(self, request: Any, context: Any) -> Any:  # noqa: N802
        """See the proto."""
        return self.caps

    async def GetModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        """See the proto."""
        return ex.GetModelResponse(model_digest="echo", model_name="echo")

    async def RunPlans(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        """Reads ahead, so that a gap is only time without a plan in hand."""
        opening = (await context.read()).open
        await context.write(ex.RunPlansResponse(opened=ex.SessionOpened(session_epoch=opening.session_epoch)))
        worker = asyncio.create_task(self._work(context))
        try:
            while (message := await context.read()) is not _EOF:
                await self._plans.put((time.monotonic_ns(), message.plan))
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

    async def _work(self, context: Any) -> None:
        while True:
            arrived_ns, plan = await self._plans.get()
            gap_ns = max(0, arrived_ns - self._ended_ns) if self._ended_ns else 0
            start_ns = max(arrived_ns, self._ended_ns)
            result = self._run(plan)
            self._ended_ns = start_ns + self._step_ns + self._phase_ns if self._step_ns else time.monotonic_ns()
            self._phase_ns = 0
            timing = StepTiming(queue_ns=start_ns - arrived_ns, forward_ns=self._ended_ns - start_ns, idle_ns=gap_ns)
            result.timing.CopyFrom(timing)
            await _until(self._ended_ns)
            if self._watched:
                self._seen.gaps.append(gap_ns)
                self._seen.lates.append(time.monotonic_ns() - self._ended_ns)
                self._num_tokens += len(result.token_ids)
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


async def _until(moment_ns: int) -> None:
    """Never early: the loop's timers count whole milliseconds."""
    while (left_ns := moment_ns - time.monotonic_ns()) > 0:  # noqa: ASYNC110 - a clock, not an event
        await asyncio.sleep(math.ceil(left_ns / 1e6) / 1e3)
