"""One pass over a recording: what is in it, what is wrong with it, and the steps around a place."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from drumline.trace.frames import Kind
from drumline.trace.reader import Recording
from scheduler_svc.replay.audit import Auditor
from scheduler_svc.replay.books import Desk, Step
from scheduler_svc.replay.findings import Finding

AROUND = 4
"""Steps shown before the one that was asked for."""


@dataclass(slots=True)
class Survey:
    """Counts and findings. `num_answered`: steps with a result, per executor id."""

    num_frames: int = 0
    num_plans: int = 0
    num_answered: dict[int, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def survey(recording: Recording) -> Survey:
    """Reads everything once."""
    found, auditor = Survey(), Auditor(recording.header)
    for frame in recording:
        step = auditor.frame(frame)
        found.num_frames += 1
        found.num_plans += frame.kind is Kind.PLAN
        if step is not None and frame.kind is Kind.RESULT:
            found.num_answered[step.executor_id] = found.num_answered.get(step.executor_id, 0) + 1
    found.findings = auditor.findings
    return found


def steps_of(recording: Recording, *, executor_id: int = 0, step: int = 0, last: int = 0) -> Iterator[Step]:
    """Steps in the order of their plans, with results: all, only step number `step`, or the `last` ones. 0 = any."""
    auditor, kept = Auditor(recording.header), deque[Step](maxlen=last or None)
    for frame in recording:
        one = auditor.frame(frame)
        if one is None or frame.kind is not Kind.PLAN:
            continue
        if executor_id in (0, one.executor_id) and step in (0, one.plan.step_id):
            kept.append(one)
    yield from kept


def window(recording: Recording, executor_id: int, *, until: int) -> tuple[Desk, list[Step]]:
    """An executor's books right behind the result of step `until`, and that step behind the few before it."""
    auditor, kept = Auditor(recording.header), deque[Step](maxlen=AROUND + 1)
    for frame in recording:
        step = auditor.frame(frame)
        if step is not None and frame.kind is Kind.RESULT and step.executor_id == executor_id:
            kept.append(step)
            if step.plan.step_id >= until:
                break
    desk = auditor.books.desks.get(executor_id)
    if desk is None or not kept or kept[-1].plan.step_id != until:
        return desk or Desk(executor_id, "", None), []  # type: ignore[arg-type]
    return desk, list(kept)
