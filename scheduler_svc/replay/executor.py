"""Replays plans on a fresh executor and names the first step, row and field that differ from what was recorded."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from drumline.errors import DrumlineError, InvalidRequest, PlanRejected
from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from drumline.plan.v1.plan_pb2 import ADVANCE_PER_SEQUENCE, StepPlan, StepResult
from drumline.trace.frames import Kind
from drumline.trace.reader import Recording
from scheduler_svc.replay.audit import Auditor
from scheduler_svc.replay.books import Step
from scheduler_svc.replay.compare import Difference, differences
from scheduler_svc.replay.host import child_executor
from scheduler_svc.replay.stream import run_plans
from scheduler_svc.replay.warmup import Warmup


@dataclass(slots=True)
class Outcome:
    """What replaying one executor's plans gave.

    Attributes:
        num_steps, num_rows, num_tokens: compared.
        differences: of the first step that has any (of all steps with `keep_going`).
        results: replayed results by step, the last few.
        error: how the executor ended the stream before the end, or "".
        note: what could not be compared, and why.
    """

    executor_id: int
    num_steps: int = 0
    num_rows: int = 0
    num_tokens: int = 0
    differences: list[Difference] = field(default_factory=list)
    results: dict[int, StepResult] = field(default_factory=dict)
    error: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """How to replay.

    Attributes:
        until: last step, 0 = all.
        target: `host:port` of a running executor; "" = start one.
        extra: more flags for the started one (a model's path).
        keep_going: go on behind the first step that differs.
        keep_results: replayed results to keep for whoever dumps rows.
    """

    until: int = 0
    target: str = ""
    extra: Sequence[str] = ()
    keep_going: bool = False
    keep_results: int = 16


def executors_of(recording: Recording) -> dict[int, GetCapabilitiesResponse]:
    """Every executor of a recording, by id."""
    found = {}
    for index, frame in enumerate(recording):
        if frame.kind is Kind.HANDSHAKE:
            found[frame.payload[0]] = GetCapabilitiesResponse.FromString(frame.payload[2])
        elif frame.kind is Kind.SNAPSHOT and index == 0:
            found.update({one[0]: GetCapabilitiesResponse.FromString(one[2]) for one in frame.payload[1]})
    return found


def answered_steps(recording: Recording, executor_id: int, *, until: int = 0, warmup: Warmup | None = None) -> Iterator[Step]:
    """Steps of one executor in order, each once its result is known. Steps that were never answered do not count."""
    auditor = Auditor(recording.header)
    for index, frame in enumerate(recording):
        step = auditor.frame(frame)
        if index == 0 and warmup is not None:
            warmup.begin(auditor.state)
        if step is not None and frame.kind is Kind.RESULT and step.executor_id == executor_id:
            if until and step.plan.step_id > until:
                return
            yield step


def replay_on_executor(
    recording: Recording, executor_id: int, caps: GetCapabilitiesResponse, *, options: Options, progress: Callable[[int], None]
) -> Outcome:
    """Replays one recorded executor. `progress` is told the number of steps done. Raises ModelMismatch, Unavailable."""
    if options.target:
        return asyncio.run(_replay(recording, executor_id, caps, target=options.target, options=options, progress=progress))
    with child_executor(caps, extra=options.extra) as target:
        return asyncio.run(_replay(recording, executor_id, caps, target=target, options=options, progress=progress))


async def _replay(
    recording: Recording,
    executor_id: int,
    caps: GetCapabilitiesResponse,
    *,
    target: str,
    options: Options,
    progress: Callable[[int], None],
) -> Outcome:
    outcome = Outcome(executor_id)
    warmup = Warmup(executor_id, caps)
    steps = answered_steps(recording, executor_id, until=options.until, warmup=warmup)
    first = next(steps, None)
    if first is None:
        return outcome
    # somebody else's executor may have been taken over by a newer epoch than the recorded one
    epoch = time.time_ns() if options.target else int(first.plan.session_epoch)
    grant_id = int(first.plan.grant_id)
    plans = _plans(first, steps, warmup, epoch=epoch, grant_id=grant_id)
    granted = first.plan.advance == ADVANCE_PER_SEQUENCE
    stream = run_plans(target, plans, model_digest=caps.model_digest, session_epoch=epoch, grant_id=grant_id, granted=granted)
    try:
        async with contextlib.aclosing(stream):
            async for sent, result in stream:
                if sent is None:
                    warmup.check(result)
                    continue
                _note(outcome, sent, result, options=options)
                progress(outcome.num_steps)
                if outcome.differences and not options.keep_going:
                    break
    except (PlanRejected, InvalidRequest) as error:
        outcome.error = f"{error.code}: {error.message}"
    except DrumlineError as error:
        if not outcome.num_steps:
            raise
        outcome.error = f"{error.code}: {error.message}"
    outcome.note = warmup.note
    return outcome


@dataclass(frozen=True, slots=True)
class _Sent:
    """A step on its way: slots whose rows cannot be compared, and whether the count of blocks can."""

    step: Step
    unknown: frozenset[int]
    compares_blocks: bool


def _plans(
    first: Step, rest: Iterator[Step], warmup: Warmup, *, epoch: int, grant_id: int
) -> Iterator[tuple[_Sent | None, StepPlan]]:
    for plan in warmup.plans(session_epoch=epoch, grant_id=grant_id):
        yield None, plan
    for step in chain((first,), rest):
        plan = warmup.renumbered(step, session_epoch=epoch)
        yield _Sent(step, frozenset(warmup.unknown), warmup.compares_blocks(step)), plan


def _note(outcome: Outcome, sent: _Sent, result: StepResult, *, options: Options) -> None:
    step = sent.step
    outcome.num_steps += 1
    outcome.num_rows += len(step.rows)
    outcome.num_tokens += len(result.token_ids)
    for one in differences(step, result):
        if one.slot not in sent.unknown and (sent.compares_blocks or one.field != "num_blocks_in_use"):
            outcome.differences.append(one)
    del outcome.differences[1000:]
    outcome.results[int(step.plan.step_id)] = result
    if len(outcome.results) > options.keep_results:
        outcome.results.pop(next(iter(outcome.results)))
