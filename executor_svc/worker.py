"""The one thread that runs plans: apply, forward, commit, in the order in which they came.

The asyncio side hands plans in through a bounded queue and gets results through a callback that is called on this thread. A
session's state belongs to this thread from its first plan on; closing a session only marks it, and its queued plans are dropped
unrun.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from drumline import limits
from drumline.errors import DrumlineError, Internal, PlanRejected
from executor_svc.backends.base import Backend
from executor_svc.batch import Assembler, Step
from executor_svc.canary import canary_batch
from executor_svc.commit import commit
from executor_svc.drafter import Drafter
from executor_svc.plan import PER_SEQUENCE, Plan, Sampled, StepResult
from executor_svc.slots import SlotLimits, Slots

log = logging.getLogger(__name__)
FAILURES_UNTIL_UNHEALTHY: Final = 3
"""Steps in a row that a backend may fail before the executor says that it does not serve."""
CANARY_INTERVAL_S: Final = 1.0
"""How often an unhealthy device is tried again once no session needs its cache."""
_FULL_PAUSE_S: Final = 0.002


class Work:
    """What one session has on the device. Dropping it frees every slot and block at once.

    Attributes:
        ragged_granted: whether its scheduler admitted rows of different lengths into one step.
        deliver: called on the worker thread with each result in plan order, or with the error that ends the session.
        closed: set from any thread; plans still queued are dropped and nothing more is delivered.
    """

    def __init__(
        self,
        slot_limits: SlotLimits,
        *,
        deliver: Callable[[StepResult | DrumlineError], None],
        ragged_granted: bool = False,
        drafter: Drafter | None = None,
    ) -> None:
        self.slots = Slots(slot_limits)
        self.assembler = Assembler(self.slots, drafter)
        self.ragged_granted = ragged_granted
        self.deliver = deliver
        self.closed = False

    def close(self) -> None:
        """Nothing more runs or is delivered. Idempotent, from any thread."""
        self.closed = True


@dataclass(slots=True)
class Job:
    """A plan of a session and when it arrived, ns of the monotonic clock."""

    work: Work
    plan: Plan
    arrived_ns: int = field(default_factory=time.monotonic_ns)


class Worker:
    """Owns the backend.

    Attributes:
        healthy: false after several failed steps in a row, until one succeeds, a session's or our own; false for good when the
            thread died.
        dead: the thread ended without being asked to; the process cannot serve any more.
        on_health: called on the worker thread whenever `healthy` changes.
    """

    def __init__(self, backend: Backend, *, on_health: Callable[[bool], None]) -> None:
        self.healthy = True
        self.dead = False
        self._backend = backend
        self._on_health = on_health
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=limits.MAX_PLANS_QUEUED)
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._current: Work | None = None
        self._done_ns = 0
        self._failures = 0

    def start(self) -> None:
        """Starts the thread; once."""
        self._thread.start()

    def stop(self, *, timeout_s: float) -> None:
        """Ends the thread after the step that it runs, drops what is queued and gives the device back."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        self._jobs.put_nowait(None)
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._backend.close()

    async def submit(self, job: Job) -> None:
        """Queues a plan. The queue is full only while plans of a session that was taken over wait to be dropped."""
        while True:
            try:
                self._jobs.put_nowait(job)
            except queue.Full:
                await asyncio.sleep(_FULL_PAUSE_S)
            else:
                return

    def _run(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                if not job.work.closed:
                    self._serve(job)
        except BaseException:
            self.dead = True
            self._set_health(healthy=False)
            raise

    def _next_job(self) -> Job | None:
        while True:
            try:
                return self._jobs.get(timeout=None if self.healthy else CANARY_INTERVAL_S)
            except queue.Empty:
                self._try_device()

    def _try_device(self) -> None:
        """Schedulers leave an unhealthy executor, so without a step of its own it could never say that it works again."""
        if self._current is not None and not self._current.closed:
            return
        self._current = None  # the next session's first plan resets the cache that this writes into
        try:
            self._backend.reset()
            self._backend.forward(canary_batch(self._backend.model, self._backend.info))
        except Exception as error:
            log.info("the device still fails: %s", type(error).__name__)
            return
        self._failures = 0
        self._set_health(healthy=True)

    def _serve(self, job: Job) -> None:
        """One plan; whatever goes wrong is its session's error and never the thread's end."""
        outcome: StepResult | DrumlineError
        try:
            if job.work is not self._current:
                self._begin(job.work)
            outcome = self._step(job)
        except DrumlineError as error:
            outcome = error
        except Exception as error:
            log.exception("plan %d broke the executor's books", job.plan.step_id)
            outcome = Internal(f"the executor could not apply the plan: {type(error).__name__}")
        if not job.work.closed:
            job.work.deliver(outcome)

    def _begin(self, work: Work) -> None:
        """The first plan of a session: what its scheduler granted is known to the pipeline before the first step."""
        self._backend.reset()
        self._backend.pipeline.begin_session()
        self._backend.pipeline.set_ragged_batch_admission(granted=work.ragged_granted)
        self._current, self._done_ns = work, 0

    def _step(self, job: Job) -> StepResult:
        started_ns = time.monotonic_ns()
        self._check_advance(job.plan)
        step = job.work.assembler.apply(job.plan)
        assembled_ns = time.monotonic_ns()
        sampled = self._forward(step)
        result = commit(job.work.slots, step, sampled)
        result.advance = self._backend.pipeline.kv_advance()
        result.queue_ns = started_ns - job.arrived_ns
        result.assemble_ns = assembled_ns - started_ns - step.draft_ns
        result.idle_ns = max(0, job.arrived_ns - self._done_ns) if self._done_ns else 0
        self._done_ns = time.monotonic_ns()
        return result

    def _check_advance(self, plan: Plan) -> None:
        """Only drafts let rows move apart. How they do is settled before a session's first step. Raises PlanRejected."""
        if plan.advance == PER_SEQUENCE and plan.draft_len.any() and self._backend.pipeline.kv_advance() != PER_SEQUENCE:
            raise PlanRejected(
                "advance is PER_SEQUENCE and rows have drafts, which nobody granted: this session's rows move by COHORT"
            )

    def _forward(self, step: Step) -> Sampled:
        """The backend's step; an exception of it fails the rows of this step, by name, and no others."""
        if step.batch.is_empty:
            return Sampled(token_ids=np.zeros(0, np.int32))
        try:
            sampled = self._backend.forward(step.batch)
            if len(sampled.token_ids) != len(step.batch.sample.rows):
                raise ValueError("the backend sampled for another number of rows")
        except DrumlineError as error:  # it said no, by name: the device is well
            log.warning("step %d was refused: %s", step.plan.step_id, error.message)
            return _failed(step, (error.code, error.message))
        except Exception as error:
            log.exception("step %d failed in the backend", step.plan.step_id)
            self._failures += 1
            if self._failures >= FAILURES_UNTIL_UNHEALTHY:
                self._set_health(healthy=False)
            return _failed(step, (Internal.code, f"the step failed on the device: {type(error).__name__}"))
        self._failures = 0
        self._set_health(healthy=True)
        return sampled

    def _set_health(self, *, healthy: bool) -> None:
        if healthy != self.healthy:
            self.healthy = healthy
            self._on_health(healthy)


def _failed(step: Step, reason: tuple[str, str]) -> Sampled:
    """Every row of the step ends for the same reason."""
    rows = dict.fromkeys(range(len(step.rows)), reason)
    return Sampled(token_ids=np.zeros(len(step.batch.sample.rows), np.int32), row_errors=rows)
