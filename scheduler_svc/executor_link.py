"""One session with one executor process, and whom it reports to.

The engine talks to an `ExecutorLink` without waiting; `executor_client` moves what it queues over the wire. A link that was
reported `lost` says nothing more.
"""

import asyncio
from typing import Protocol

from drumline import limits
from drumline.errors import PlanRejected, StaleEpoch
from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse, GetModelResponse, RunPlansRequest
from scheduler_svc import wire
from scheduler_svc.core.types import Plan, StepResult
from scheduler_svc.ports import Clock


class ExecutorLink:
    """One session with one executor process.

    Attributes:
        in_flight: step id -> when it was submitted, ns; oldest first.
        draining: the executor asked for nothing new.
        num_scheduled: rows of the last plan that had rows.
    """

    def __init__(
        self, address: str, *, executor_id: int, session_epoch: int, capabilities: GetCapabilitiesResponse, clock: Clock
    ) -> None:
        self.address = address
        self.executor_id = executor_id
        self.session_epoch = session_epoch
        self.capabilities = capabilities
        self.in_flight: dict[int, int] = {}
        self.draining = False
        self.num_scheduled = 0
        self.heard_ns = clock.now_ns()
        self._clock = clock
        self._outgoing: asyncio.Queue[RunPlansRequest] = asyncio.Queue(maxsize=limits.MAX_PLANS_QUEUED)
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def submit(self, plan: Plan) -> bytes:
        """Sends a plan without waiting and returns its exact bytes. The engine keeps the in-flight bound, far below the queue's."""
        message = RunPlansRequest()
        wire.fill_plan(message.plan, plan, session_epoch=self.session_epoch)
        self._outgoing.put_nowait(message)
        self.in_flight[plan.step_id] = self._clock.now_ns()
        if not plan.repeat_rows:
            self.num_scheduled = len(plan.slots)
        return bytes(message.plan.SerializeToString())

    def returned(self, step_id: int) -> int:
        """The oldest plan in flight came back; returns when it was submitted, ns. Raises PlanRejected if it is another one."""
        oldest = next(iter(self.in_flight), None)
        if step_id != oldest:
            raise PlanRejected(f"result of step {step_id} came, that of step {oldest} was due")
        return self.in_flight.pop(step_id)

    def close(self, reason: str) -> None:
        """Ends the session from the engine's side (for example after a result that contradicts its plan). Idempotent."""
        if not self._failure.done():
            self._failure.set_result(reason)

    async def next_message(self) -> RunPlansRequest:
        """The next plan to write."""
        return await self._outgoing.get()

    async def failed(self) -> str:
        """Waits for `close`; returns its reason."""
        return await asyncio.shield(self._failure)


class LinkOwner(Protocol):
    """Who is told about executors. The coroutines wait while the owner's inbox is full, which holds back the stream."""

    async def joined(self, link: ExecutorLink, model: GetModelResponse | None) -> None:
        """The session is open; plans may be submitted."""
        ...

    async def result(self, link: ExecutorLink, result: StepResult, *, raw: bytes, times: wire.StepTimes) -> None:
        """A plan has returned. `raw` is the exact message."""
        ...

    async def executor_draining(self, link: ExecutorLink) -> None:
        """The executor is going away by itself."""
        ...

    async def lost(self, link: ExecutorLink, reason: str) -> None:
        """The session is over, whatever was in flight."""
        ...

    async def superseded(self, address: str, error: StaleEpoch) -> None:
        """A newer scheduler owns this executor; it will not be dialled again."""
        ...
