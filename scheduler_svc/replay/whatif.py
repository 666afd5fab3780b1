"""Re-simulates the recorded arrivals under other limits. Everything it tells is simulated and tagged `sim`.

The executor model says the recorded tokens of each request, and takes as long per step as a straight line through the recorded
steps says (base + time per token fed). It guesses nothing ahead, also where the recorded ones did. Requests that a client withdrew
are withdrawn after as many tokens as they had then.
"""

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

import numpy as np

from drumline.errors import InvalidRequest
from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from drumline.scheduler.v1.scheduler_pb2 import Submit
from drumline.trace.frames import Kind
from drumline.trace.reader import Recording
from scheduler_svc import wire
from scheduler_svc.core.errors import ContradictingCadence
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import ExecutorInfo, FinishReason, Limits, Outputs, Plan, Request, RowKind, StepResult
from scheduler_svc.replay.against import limits_of
from scheduler_svc.replay.audit import Auditor
from scheduler_svc.replay.books import Life

MAX_STEPS = 2_000_000
DRAFTS = ("drafts", "advance")
"""Limits that say something of drafts alone."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a recording gives to a simulation.

    Attributes:
        limits: recorded. arrivals: (ns, requests), in order.
        executors: those that joined first; joins and losses later are left out.
        lives: what became of each request, by key.
        base_ns, per_token_ns: the line through recorded step times.
        num_steps, num_rows, ttft_steps, span_ns: measured in the recording itself.
    """

    limits: Limits
    arrivals: Sequence[tuple[int, list[Request]]]
    executors: Sequence[ExecutorInfo]
    lives: Mapping[int, Life]
    base_ns: float
    per_token_ns: float
    measured: "Measures"


@dataclass(slots=True)
class Measures:
    """What a session was like. `ttft_steps`: steps from arrival to first token, per request; `ttft_ns` the same in time."""

    num_steps: int = 0
    num_rows: int = 0
    num_tokens: int = 0
    num_preemptions: int = 0
    num_refused: int = 0
    span_ns: int = 0
    ttft_steps: list[int] = field(default_factory=list)
    ttft_ns: list[int] = field(default_factory=list)

    @property
    def mean_rows(self) -> float:
        """Rows per step that had any."""
        return self.num_rows / self.num_steps if self.num_steps else 0.0


def changes_of(words: Sequence[str]) -> dict[str, Any]:
    """`max_num_seqs=4` -> {"max_num_seqs": 4}. Raises InvalidRequest naming what there is."""
    kinds = {item.name: type(item.default) for item in dataclasses.fields(Limits) if item.name not in DRAFTS}
    words_of = {name: get_args(hint) for name, hint in get_type_hints(Limits).items() if get_args(hint)}
    changes: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        name = name.strip().replace("-", "_")
        if name not in kinds:
            known = ", ".join(sorted(kinds))
            raise InvalidRequest(f"what-if knows {known}; not {name!r} (and it simulates steps without drafts)", param="what-if")
        if name in words_of:
            if value not in words_of[name]:
                raise InvalidRequest(f"{name} is one of {', '.join(words_of[name])}, not {value!r}", param="what-if")
            changes[name] = value
            continue
        try:
            changes[name] = value.lower() in ("1", "true", "yes", "on") if kinds[name] is bool else int(value)
        except ValueError:
            raise InvalidRequest(f"{name} must be a whole number, got {value!r}", param="what-if") from None
    return changes


def read_session(recording: Recording) -> Session:
    """What a simulation needs. Raises InvalidRequest for a recording that begins in the middle of a session."""
    auditor, arrivals, executors = Auditor(recording.header), [], list[ExecutorInfo]()
    measured, fed, took = Measures(), list[int](), list[int]()
    begun: dict[int, tuple[int, int]] = {}
    first_ns = last_ns = 0
    for frame in recording:
        if frame.kind is Kind.SNAPSHOT and not first_ns:
            raise InvalidRequest("what-if needs a recording from its first segment on", param="what-if")
        first_ns, last_ns = first_ns or frame.t_ns, frame.t_ns
        step = auditor.frame(frame)
        if frame.kind is Kind.HANDSHAKE and not measured.num_steps:
            info = wire.executor_info(frame.payload[0], GetCapabilitiesResponse.FromString(frame.payload[2]))
            executors.append(dataclasses.replace(info, mtp_depth=0))
        elif frame.kind is Kind.ARRIVAL:
            key, arrival_ns, timeout_ms, raw = frame.payload
            submit = Submit.FromString(raw)
            requests = wire.requests_of(submit, first_key=key, arrival_ns=arrival_ns, default_timeout_ms=timeout_ms)
            arrivals.append((arrival_ns, requests))
            begun.update((request.key, (measured.num_steps, arrival_ns)) for request in requests)
        elif frame.kind is Kind.RESULT and step is not None and step.result is not None and step.rows:
            measured.num_steps += 1
            measured.num_rows += len(step.rows)
            measured.num_tokens += len(step.result.token_ids)
            fed.append(sum(row.num_tokens for row in step.rows))
            took.append(wire.times_of(step.result).device_ns)
            for row in step.rows:
                _first_token(measured, begun, row.resident.life.key, row.resident.life.num_emitted, now_ns=frame.t_ns)
    measured.span_ns = last_ns - first_ns
    measured.num_preemptions = auditor.books.num_preempted
    measured.num_refused = -1  # an admission is not recorded; the core decides it again
    base, slope = _line(fed, took)
    limits = limits_of(recording.header.settings)
    return Session(limits, arrivals, executors, auditor.books.lives, base, slope, measured)


def simulate(session: Session, *, changes: Mapping[str, Any]) -> Measures:
    """The same arrivals under changed limits. Raises InvalidRequest for limits that contradict each other."""
    limits = dataclasses.replace(session.limits, **changes)
    try:
        return _Simulation(session, limits).run()
    except ContradictingCadence as error:
        raise InvalidRequest(str(error), param="what-if") from None


@dataclass(slots=True)
class _Desk:
    """The executor model: one step at a time, recorded tokens."""

    info: ExecutorInfo
    queue: deque[tuple[Plan, StepResult, int]] = field(default_factory=deque)
    keys: dict[int, int] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    tables: dict[int, list[int]] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    free_at_ns: int = 0


class _Simulation:
    """A core, model executors and a clock."""

    def __init__(self, session: Session, limits: Limits) -> None:
        self._session = session
        self._core = Scheduler(limits)
        self._desks = {info.executor_id: _Desk(info) for info in session.executors}
        for info in session.executors:
            self._core.add_executor(info)
        self._arrivals = deque(session.arrivals)
        self._now_ns = self._start_ns = session.arrivals[0][0] if session.arrivals else 0
        self._begun: dict[int, tuple[int, int]] = {}
        self._said: dict[int, int] = {}
        self._measures = Measures()

    def run(self) -> Measures:
        """To the end of all requests."""
        for _ in range(MAX_STEPS):
            self._arrive()
            for desk in self._desks.values():
                self._feed(desk)
            times = [desk.queue[0][2] for desk in self._desks.values() if desk.queue]
            times += [self._arrivals[0][0]] if self._arrivals else []
            if not times:
                break
            self._now_ns = max(self._now_ns, min(times))
            for desk in self._desks.values():
                if desk.queue and desk.queue[0][2] <= self._now_ns:
                    self._answer(desk)
        self._measures.span_ns = self._now_ns - self._start_ns
        self._measures.num_preemptions = self._core.counters.num_preemptions
        return self._measures

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self._now_ns:
            _, requests = self._arrivals.popleft()
            if self._core.add_requests(requests) is not None:
                self._measures.num_refused += len(requests)
            self._begun.update((request.key, (self._measures.num_steps, self._now_ns)) for request in requests)

    def _feed(self, desk: _Desk) -> None:
        self._core.tick(self._now_ns)
        while (plan := self._core.schedule(desk.info.executor_id)) is not None:
            result = self._run(desk, plan)
            fed = len(desk.rows) if plan.repeat_rows else sum(plan.num_tokens)
            begin = max(desk.free_at_ns, self._now_ns)
            desk.free_at_ns = begin + int(self._session.base_ns + self._session.per_token_ns * fed)
            desk.queue.append((plan, result, desk.free_at_ns))

    def _run(self, desk: _Desk, plan: Plan) -> StepResult:
        for slot in (*plan.freed_slots, *plan.aborted_slots):
            desk.tables.pop(slot, None)
            desk.ended.add(slot)
        for new in plan.new_sequences:
            desk.keys[new.slot], desk.lengths[new.slot], desk.tables[new.slot] = new.key, new.num_cached_tokens, []
            desk.ended.discard(new.slot)
            self._said[new.key] = len(new.token_ids) - new.num_prompt_tokens
        if plan.slots:
            desk.rows = list(plan.slots)
        slots = desk.rows if plan.repeat_rows else plan.slots
        counts = [1] * len(slots) if plan.repeat_rows else plan.num_tokens
        kinds = [RowKind.DECODE] * len(slots) if plan.repeat_rows else plan.row_kinds
        emitted, tokens, lengths, finished, skipped = [], list[int](), list[int](), [], []
        for row, block in zip(plan.block_rows, plan.block_ids, strict=True):
            if slots[row] not in desk.ended:
                desk.tables[slots[row]].append(block)
        for row, (slot, count, kind) in enumerate(zip(slots, counts, kinds, strict=True)):
            if slot in desk.ended:
                skipped.append(row)
                emitted.append(0)
                lengths.append(0)
                continue
            desk.lengths[slot] += count
            lengths.append(desk.lengths[slot])
            token, reason = (None, None) if kind == RowKind.PREFILL else self._say(desk.keys[slot])
            emitted.append(0 if token is None else 1)
            tokens += [] if token is None else [token]
            if reason is not None:
                finished.append((row, reason))
                desk.ended.add(slot)
                desk.tables.pop(slot, None)
        in_use = len({block for blocks in desk.tables.values() for block in blocks})
        return StepResult(plan.step_id, emitted, tokens, lengths, finished, skipped, num_blocks_in_use=in_use)

    def _say(self, key: int) -> tuple[int | None, FinishReason | None]:
        """The next recorded token of a request, and its recorded end with the last."""
        life = self._session.lives[key]
        at = life.num_prompt + self._said[key]
        if life.max_tokens == 0:
            return None, FinishReason.LENGTH
        self._said[key] += 1
        token = life.tokens[at] if at < len(life.tokens) else 0
        if self._said[key] >= life.max_tokens:
            return token, FinishReason.LENGTH
        over = self._said[key] >= life.num_emitted and life.end == "stop"
        return token, FinishReason.STOP if over else None

    def _answer(self, desk: _Desk) -> None:
        _, result, _ = desk.queue.popleft()
        outputs: Outputs = self._core.update(desk.info.executor_id, result)
        if result.lengths:
            self._measures.num_steps += 1
            self._measures.num_rows += len(result.lengths)
            self._measures.num_tokens += len(result.token_ids)
        withdrawn = []
        for key in outputs.keys:
            life = self._session.lives[key]
            said = self._said.get(key, 0)
            _first_token(self._measures, self._begun, key, said, now_ns=self._now_ns)
            if life.aborted and said >= life.num_emitted:
                withdrawn.append(key)
        self._core.abort(withdrawn)


def _first_token(measures: Measures, begun: dict[int, tuple[int, int]], key: int, num_emitted: int, *, now_ns: int) -> None:
    if num_emitted and key in begun:
        step, arrival_ns = begun.pop(key)
        measures.ttft_steps.append(measures.num_steps - step)
        measures.ttft_ns.append(now_ns - arrival_ns)


def _line(fed: list[int], took: list[int]) -> tuple[float, float]:
    """Least squares, neither part below 0."""
    if len(set(fed)) < 2:
        return (float(np.mean(took)) if took else 1e6), 0.0
    slope = np.polyfit(np.array(fed, float), np.array(took, float), 1)[0]
    slope = max(float(slope), 0.0)
    return max(float(np.mean(took)) - slope * float(np.mean(fed)), 0.0), slope
