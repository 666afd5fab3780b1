"""One scheduler's plan stream as the executor sees it: who may open it, which plans it may send, what leaves it. No gRPC here.

Lives on the event loop; results arrive from the worker thread. At most MAX_PLANS_QUEUED plans are held until their results have
left, so a scheduler that does not read stops being read.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from drumline import limits
from drumline.errors import DrumlineError, ModelMismatch, PlanRejected, ProtocolMismatch, StaleEpoch, StaleGrant
from drumline.version import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from executor_svc.drafter import Drafter
from executor_svc.plan import StepResult
from executor_svc.slots import SlotLimits
from executor_svc.worker import Work


@dataclass(frozen=True, slots=True)
class DrainNotice:
    """Told to the scheduler once: place nothing new here. `grace_ms` is the time left."""

    grace_ms: int


@dataclass(frozen=True, slots=True)
class Opening:
    """What a scheduler said when it opened its session; fields as in `executor.proto` OpenSession."""

    session_epoch: int
    protocol_version: int
    model_digest: str
    grant_id: int
    ragged_granted: bool = False

    def check(self, *, model_digest: str, newest_epoch: int) -> None:
        """Raises the named error of the first thing that does not fit."""
        if not MIN_PROTOCOL_VERSION <= self.protocol_version <= PROTOCOL_VERSION:
            spoken = f"{MIN_PROTOCOL_VERSION} to {PROTOCOL_VERSION}"
            raise ProtocolMismatch(f"protocol_version {self.protocol_version} is not spoken here; this executor speaks {spoken}")
        if self.model_digest != model_digest:
            raise ModelMismatch(f"model_digest {self.model_digest[:12]!r} is not this executor's {model_digest[:12]!r}")
        if not self.session_epoch or not self.grant_id:
            raise PlanRejected("session_epoch and grant_id must not be 0")
        if self.session_epoch <= newest_epoch:
            raise StaleEpoch(f"session_epoch {self.session_epoch} is not newer than {newest_epoch}, which took this executor over")


class Session:
    """An open session.

    Attributes:
        opening: what it was opened with.
        work: its state on the device; dropped with the session.
        outbox: results and notices on their way to the scheduler, bounded by the plans held.
        error: why it was ended by name, or None.
    """

    def __init__(self, opening: Opening, slot_limits: SlotLimits, *, drafter: Drafter | None = None) -> None:
        self.opening = opening
        deliver = self._deliver_from_worker
        self.work = Work(slot_limits, deliver=deliver, ragged_granted=opening.ragged_granted, drafter=drafter)
        self.outbox: asyncio.Queue[StepResult | DrainNotice] = asyncio.Queue(maxsize=limits.MAX_PLANS_QUEUED + 1)
        self.error: DrumlineError | None = None
        self._loop: Final = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._next_step_id = 1
        self._num_held = 0
        self._moved = asyncio.Event()

    @property
    def is_busy(self) -> bool:
        """Sequences live here, or a plan's result has not left yet."""
        return self.work.slots.num_live > 0 or self._num_held > 0

    def accept(self, *, step_id: int, session_epoch: int, grant_id: int) -> None:
        """Checks a plan's identity and holds the plan until its result has left. Raises the named error."""
        if session_epoch != self.opening.session_epoch:
            raise StaleEpoch(f"session_epoch {session_epoch} of the plan is not the session's {self.opening.session_epoch}")
        if grant_id != self.opening.grant_id:
            raise StaleGrant(f"grant_id {grant_id} of the plan is not the session's {self.opening.grant_id}")
        if step_id != self._next_step_id:
            raise PlanRejected(f"step_id {step_id} came where {self._next_step_id} was due")
        self._next_step_id += 1
        self._num_held += 1

    async def wait_held_below(self, bound: int) -> None:
        """Waits until fewer than `bound` plans are held."""
        while self._num_held >= bound:
            self._moved.clear()
            await self._moved.wait()

    def sent(self) -> None:
        """A result has left."""
        self._num_held -= 1
        self._moved.set()

    def end(self, error: DrumlineError | None = None) -> None:
        """Ends the session, by name if there is an error; the first end stands. Its slots and blocks are free at once."""
        if not self._over.is_set():
            self.error = error
            self.work.close()
            self._over.set()

    async def wait_over(self) -> None:
        """Returns when the session has ended; raises the error that ended it."""
        await self._over.wait()
        if self.error:
            raise self.error

    def _deliver_from_worker(self, outcome: StepResult | DrumlineError) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, outcome)
        except RuntimeError:
            self.work.close()  # the loop is gone: the process is ending

    def _deliver(self, outcome: StepResult | DrumlineError) -> None:
        if isinstance(outcome, DrumlineError):
            self.end(outcome)
        elif not self._over.is_set():
            self.outbox.put_nowait(outcome)
