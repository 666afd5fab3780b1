"""Feeds the recorded inputs to a fresh core and demands byte-identical plans."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drumline.common.v1.common_pb2 import SamplingParams
from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from drumline.plan.v1.plan_pb2 import StepPlan, StepResult
from drumline.scheduler.v1.scheduler_pb2 import Submit
from drumline.trace.frames import Frame, Kind, pack_state, unpack_state
from drumline.trace.reader import Recording
from scheduler_svc import wire
from scheduler_svc.core.errors import ResultMismatch
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import Limits
from scheduler_svc.replay.audit import NOT_UNDERSTOOD, not_understood
from scheduler_svc.replay.compare import Difference


@dataclass(slots=True)
class SchedulerOutcome:
    """`num_plans` were byte-identical before `difference`, which is None when all were."""

    num_plans: int = 0
    difference: Difference | None = None


def limits_of(settings: Mapping[str, Any], *, changes: Mapping[str, Any] | None = None) -> Limits:
    """The recorded `Limits`, with changes. Fields that this release does not know are left out."""
    recorded = settings.get("limits", {})
    known = {field.name for field in dataclasses.fields(Limits)}
    return Limits(**{name: value for name, value in {**recorded, **(changes or {})}.items() if name in known})


def replay_against_scheduler(recording: Recording, *, progress: Callable[[int], None]) -> SchedulerOutcome:
    """Replays until the first difference. `progress` is told the number of plans done."""
    replay = _Replay(recording)
    for frame in recording:
        try:
            difference = replay.take(frame)
        except NOT_UNDERSTOOD as failure:
            raise not_understood(frame, replay.num_frames, failure) from None
        if difference is not None:
            return SchedulerOutcome(replay.num_plans, difference)
        if frame.kind is Kind.PLAN:
            progress(replay.num_plans)
    return SchedulerOutcome(replay.num_plans, replay.finish())


class _Replay:
    """A core and the plan that its last TICK made."""

    def __init__(self, recording: Recording) -> None:
        self.num_plans = 0
        self._limits = limits_of(recording.header.settings)
        self._core = Scheduler(self._limits)
        self.num_frames = 0
        self._made: tuple[int, int, Any] | None = None
        self._refused = 0

    def take(self, frame: Frame) -> Difference | None:
        """Feeds one frame."""
        first, self.num_frames = self.num_frames == 0, self.num_frames + 1
        if frame.kind is Kind.PLAN:
            return self._plan(*frame.payload)
        if self._made is not None:
            return self.finish()
        if self._refused and frame.kind is not Kind.LOST:
            return Difference(self._refused, 0, None, "result", "accepted", "refused by the core")
        if frame.kind is Kind.SNAPSHOT:
            return self._snapshot(frame.payload[0], first=first)
        _APPLY[frame.kind](self, *frame.payload)
        return None

    def finish(self) -> Difference | None:
        """A plan that the recording does not have."""
        if self._made is None:
            return None
        executor_id, _, plan = self._made
        return Difference(executor_id, plan.step_id, None, "plan", "no plan", f"a plan of {len(plan.slots)} rows")

    def _plan(self, executor_id: int, raw: bytes) -> Difference | None:
        recorded = StepPlan.FromString(raw)
        made, self._made = self._made, None
        if made is None or made[0] != executor_id:
            return Difference(executor_id, int(recorded.step_id), None, "plan", f"a plan of {len(recorded.slot)} rows", "no plan")
        wired = wire.plan_to_wire(made[2], session_epoch=recorded.session_epoch)
        if wired.SerializeToString() == raw or wired.SerializeToString(deterministic=True) == raw:
            self.num_plans += 1
            return None
        field, row, want, got = first_field(recorded, wired)
        return Difference(executor_id, int(recorded.step_id), row, field, want, got)

    def _snapshot(self, raw: bytes, *, first: bool) -> Difference | None:
        if first:
            self._core = Scheduler.restore(unpack_state(raw, sampling=SamplingParams.FromString))
        elif pack_state(self._core.snapshot()) != raw:
            return Difference(0, 0, None, "snapshot", "the core's state at a new segment", "another state")
        return None

    def _handshake(self, executor_id: int, address: str, raw: bytes) -> None:
        del address
        self._core.add_executor(wire.executor_info(executor_id, GetCapabilitiesResponse.FromString(raw)))

    def _arrival(self, first_key: int, arrival_ns: int, default_timeout_ms: int, raw: bytes) -> None:
        submit = Submit.FromString(raw)
        self._core.add_requests(
            wire.requests_of(submit, first_key=first_key, arrival_ns=arrival_ns, default_timeout_ms=default_timeout_ms)
        )

    def _abort(self, keys: list[int]) -> None:
        self._core.abort(keys)

    def _tick(self, executor_id: int, now_ns: int) -> None:
        self._core.tick(now_ns)
        if executor_id and (plan := self._core.schedule(executor_id)) is not None:
            self._made = (executor_id, now_ns, plan)

    def _result(self, executor_id: int, raw: bytes) -> None:
        try:
            self._core.update(executor_id, wire.result_of(StepResult.FromString(raw)))
        except ResultMismatch:
            self._refused = executor_id

    def _drain(self, executor_id: int) -> None:
        self._core.drain_executor(executor_id)

    def _lost(self, executor_id: int, reason: str) -> None:
        del reason
        self._refused = 0
        self._core.remove_executor(executor_id)


_APPLY: Mapping[Kind, Callable[..., None]] = {
    Kind.HANDSHAKE: _Replay._handshake,
    Kind.ARRIVAL: _Replay._arrival,
    Kind.ABORT: _Replay._abort,
    Kind.TICK: _Replay._tick,
    Kind.RESULT: _Replay._result,
    Kind.DRAIN: _Replay._drain,
    Kind.LOST: _Replay._lost,
}


def first_field(recorded: Any, replayed: Any) -> tuple[str, int | None, object, object]:
    """(field, index or None, recorded value, replayed value) of the first field in which two messages of a kind differ."""
    for field in recorded.DESCRIPTOR.fields:
        want, got = getattr(recorded, field.name), getattr(replayed, field.name)
        if want == got:
            continue
        if not field.is_repeated:
            return field.name, None, want, got
        index = next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b), min(len(want), len(got)))
        return field.name, index, *(_shown(column, index) for column in (want, got))
    return "bytes", None, "encoded differently", "though every field is equal"


def _shown(column: Any, index: int) -> object:
    if index >= len(column):
        return f"{len(column)} entries"
    value = column[index]
    return str(value).replace("\n", " ").strip()[:200] if hasattr(value, "DESCRIPTOR") else value
