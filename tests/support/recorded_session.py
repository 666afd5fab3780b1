"""A whole session in one thread: the real core, the real executor room with its fake backend, the real recorder, and a made-up
clock.

Deterministic: the same arguments make the same recording, byte for byte but for times. A `Bug` sits at one of the seams and spoils
what passes through: messages of the wire, the core's own books, or the executor's slots.
"""

import random
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from drumline.common.v1.common_pb2 import SamplingParams
from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from drumline.plan.v1.plan_pb2 import StepPlan, StepResult
from drumline.scheduler.v1.scheduler_pb2 import SequenceRequest, Submit
from executor_svc import wire as executor_wire
from executor_svc.backends.fake import FakeBackend, FakeOptions
from executor_svc.batch import Assembler
from executor_svc.commit import commit
from executor_svc.plan import Sampled
from executor_svc.service import slot_limits
from executor_svc.slots import Slots
from scheduler_svc import wire
from scheduler_svc.core.errors import ResultMismatch
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import Limits
from scheduler_svc.recording import FileRecorder

STEP_NS = 1_000_000


class Bug:
    """Spoils nothing. Subclasses override one method."""

    fired_step = 0
    """The step at which it shows, as the bug itself knows; 0 = it has not happened yet."""
    row: int | None = None
    slot: int | None = None
    block: int = -1

    def arrival(self, session: "Session") -> None:
        """Before requests are handed to the core."""

    def before_schedule(self, session: "Session", executor_id: int) -> None:
        """The core is about to be asked for a plan."""

    def plan(self, session: "Session", plan: StepPlan) -> StepPlan:
        """A plan on its way out, before it is recorded."""
        return plan

    def result(self, session: "Session", result: StepResult, plan: StepPlan) -> StepResult:
        """A result on its way in, before it is recorded."""
        return result

    def core_result(self, session: "Session", result: StepResult, plan: StepPlan) -> StepResult:
        """A result on its way to the core, after it was recorded."""
        return result

    def abort(self, session: "Session", keys: list[int]) -> list[int]:
        """Keys that reach the core."""
        return keys


class InProcessExecutor:
    """The executor room without its server."""

    def __init__(self, options: FakeOptions) -> None:
        self.backend = FakeBackend(options)
        self.backend.reset()
        self.limits = slot_limits(self.backend.model, self.backend.info)
        self.slots = Slots(self.limits)
        self.assembler = Assembler(self.slots, self.backend.drafter)
        self.capabilities: GetCapabilitiesResponse = executor_wire.capabilities(
            self.backend.model, self.backend.info, instance_id="in-process"
        )

    def run(self, message: StepPlan) -> StepResult:
        plan = executor_wire.plan_of(
            message, max_num_seqs=self.limits.num_slots, layouts=self.backend.info.layouts, mtp_depth=self.backend.info.mtp_depth
        )
        step = self.assembler.apply(plan)
        busy = len(step.rows) or len(step.batch.copy_src)
        sampled = self.backend.forward(step.batch) if busy else Sampled(token_ids=np.zeros(0, np.int32))
        result = commit(self.slots, step, sampled)
        result.forward_ns = STEP_NS // 2
        result.sample_ns = STEP_NS // 10
        wired: StepResult = executor_wire.result_to_wire(result)
        return wired


@dataclass
class Link:
    executor: InProcessExecutor
    queue: deque[tuple[StepPlan, StepResult]] = field(default_factory=deque)


class Session:
    """Drive it with `submit`, `abort`, `step`; `run` goes on until nothing is left."""

    def __init__(
        self,
        directory: Path,
        *,
        limits: Limits | None = None,
        options: FakeOptions | None = None,
        num_executors: int = 1,
        bug: Bug | None = None,
        segment_bytes: int = 1 << 26,
        ring_frames: int = 4096,
        epoch: int = 1_000,
    ) -> None:
        self.limits = limits or Limits(max_num_batched_tokens=64, want_digests=True)
        self.options = options or FakeOptions(num_blocks=64, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=256)
        self.bug = bug or Bug()
        self.core = Scheduler(self.limits)
        self.now_ns = 1_000_000_000
        self.epoch = epoch
        self.recorder = FileRecorder(
            session_epoch=epoch,
            freeze=self.core.freeze,
            settings={"limits": asdict(self.limits)},
            directory=directory,
            segment_bytes=segment_bytes,
            ring_frames=ring_frames,
            clock=lambda: self.now_ns,
        )
        self.links: dict[int, Link] = {}
        self.outputs: dict[int, list[int]] = {}
        self.ended: dict[int, str] = {}
        self.next_key = 1
        for _ in range(num_executors):
            self.join()

    def join(self) -> int:
        executor_id = len(self.links) + 1
        link = Link(InProcessExecutor(self.options))
        self.links[executor_id] = link
        self.recorder.handshake(executor_id, f"host:{executor_id}", link.executor.capabilities.SerializeToString())
        self.core.add_executor(wire.executor_info(executor_id, link.executor.capabilities))
        return executor_id

    def submit(self, prompts: list[list[int]], *, tenant: str = "", **sampling: object) -> list[int]:
        keys = list(range(self.next_key, self.next_key + len(prompts)))
        submit = Submit(
            sequences=[
                SequenceRequest(
                    handle=key,
                    request_id=f"req-{key}",
                    prompt_token_ids=prompt,
                    tenant=tenant,
                    sampling=SamplingParams(**{"max_tokens": 8, "seed": key * 7919, **sampling}),  # type: ignore[arg-type]
                )
                for key, prompt in zip(keys, prompts, strict=True)
            ]
        )
        self.bug.arrival(self)
        self.recorder.arrival(keys[0], self.now_ns, 600_000, submit.SerializeToString(deterministic=True))
        requests = wire.requests_of(submit, first_key=keys[0], arrival_ns=self.now_ns, default_timeout_ms=600_000)
        refusal = self.core.add_requests(requests)
        self.next_key += len(prompts)
        if refusal is None:
            self.outputs.update((key, []) for key in keys)
        return keys if refusal is None else []

    def abort(self, keys: list[int]) -> None:
        self.recorder.abort(keys)
        if wanted := self.bug.abort(self, keys):
            self._take(self.core.abort(wanted))

    def lose(self, executor_id: int) -> None:
        del self.links[executor_id]
        self.recorder.lost(executor_id, "killed")
        self._take(self.core.remove_executor(executor_id))

    def step(self) -> bool:
        """Feeds every executor to its bound, then lets each answer its oldest plan. False when nothing is in flight."""
        for executor_id in list(self.links):
            self._feed(executor_id)
        busy = False
        for executor_id in list(self.links):
            if executor_id in self.links and self.links[executor_id].queue:
                busy = True
                self._answer(executor_id)
        self.now_ns += STEP_NS
        return busy

    def run(self, *, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if not self.step():
                return
        raise RuntimeError("the session does not end")

    def close(self) -> None:
        self.recorder.close()

    def _feed(self, executor_id: int) -> None:
        link = self.links[executor_id]
        while True:
            self.now_ns += 1000
            self.recorder.tick(executor_id, self.now_ns)
            self._take(self.core.tick(self.now_ns))
            self.bug.before_schedule(self, executor_id)
            plan = self.core.schedule(executor_id)
            if plan is None:
                return
            wired = self.bug.plan(self, wire.plan_to_wire(plan, session_epoch=self.epoch))
            self.recorder.plan(executor_id, wired.SerializeToString())
            # runs at once, is answered later: the executor applies plans in order whatever the wire's delay
            link.queue.append((wired, link.executor.run(wired)))

    def _answer(self, executor_id: int) -> None:
        plan, result = self.links[executor_id].queue.popleft()
        result = self.bug.result(self, result, plan)
        self.recorder.result(executor_id, result.SerializeToString())
        result = self.bug.core_result(self, result, plan)
        try:
            self._take(self.core.update(executor_id, wire.result_of(result)))
        except ResultMismatch as error:
            self.recorder.dump(str(error))
            self.lose(executor_id)

    def _take(self, outputs: object) -> None:
        keys, counts = list(outputs.keys), list(outputs.num_tokens)  # type: ignore[attr-defined]
        at = 0
        for index, key in enumerate(keys):
            count = counts[index] if counts else 1
            self.outputs.setdefault(key, []).extend(outputs.token_ids[at : at + count])  # type: ignore[attr-defined]
            at += count
        for entry, reason in outputs.finished:  # type: ignore[attr-defined]
            self.ended[keys[entry]] = reason.name.lower()


def prompt(seed: int, size: int) -> list[int]:
    """`size` token ids of the fake's vocabulary."""
    source = random.Random(seed)
    return [source.randrange(10, 250) for _ in range(size)]


def mixed(session: Session, *, num_requests: int = 20, seed: int = 0) -> None:
    """Greedy and seeded, short and long, shared prefixes, a late burst and two aborts, run to the end."""
    source = random.Random(seed)
    shared = prompt(99, 40)
    keys: list[int] = []
    for index in range(num_requests):
        own = prompt(seed * 1000 + index, source.randrange(2, 60))
        tokens = [*shared, *own] if index % 3 == 0 else own
        sampling: dict[str, object] = {"max_tokens": source.randrange(1, 40)}
        if index % 2:
            sampling["temperature"] = 0.8
        if index % 5 == 4:
            sampling |= {"logprobs": True, "top_logprobs": 2}
        keys += session.submit([tokens], **sampling)
        for _ in range(source.randrange(0, 4)):
            session.step()
        if index in (7, 13):
            session.abort([keys[-2]])
    session.run()


def books_of(session: Session, executor_id: int = 1) -> ExecutorBooks:
    return session.core.executors[executor_id]


def slots_of(plan: StepPlan, session: Session) -> list[int]:
    """Slots of a plan's rows, "repeat" resolved by the core's own map."""
    for flight in books_of(session).in_flight:
        if flight.plan.step_id == plan.step_id:
            return [int(slot) for slot in flight.rows.slots]
    return list(plan.slot)
