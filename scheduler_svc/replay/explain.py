"""For one request: for each step whether it ran, and if not, why not."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from drumline.errors import NotFound
from drumline.trace.frames import Kind
from drumline.trace.reader import Recording
from scheduler_svc.replay.audit import Auditor
from scheduler_svc.replay.books import DECODE, PREFILL, Desk, Life, Resident, Step, settings_of


@dataclass(slots=True)
class Line:
    """Steps `first_step` to `last_step` of one executor (0 = outside any step) in which the same thing happened."""

    executor_id: int
    first_step: int
    last_step: int
    what: str
    why: str = ""
    count: int = 1

    def joins(self, other: "Line") -> bool:
        """The other line says the same of a later step."""
        same = (self.executor_id, self.what, self.why) == (other.executor_id, other.what, other.why)
        return same and bool(self.first_step)


def explain(recording: Recording, request: str) -> list[tuple[Life, list[Line]]]:
    """The story of every sequence of a request, named by its id or by its key. Raises NotFound."""
    story = _Story(recording, request)
    for frame in recording:
        story.take(frame.kind, frame.payload, story.auditor.frame(frame))
    if not story.lines:
        raise NotFound(
            f"no request {request!r} in this recording; its name is the x-request-id header of the answer, "
            "which `drumline trace show --step N` lists too"
        )
    return [(story.auditor.books.lives[key], lines) for key, lines in story.lines.items()]


class _Story:
    """Follows the recording and writes down what concerns the request."""

    def __init__(self, recording: Recording, request: str) -> None:
        self.auditor = Auditor(recording.header)
        self.lines: dict[int, list[Line]] = {}
        self._request = request
        self._num_seen = 0
        settings = recording.header.settings
        self._budget = settings_of(settings, "max_num_batched_tokens", 2**31)
        self._max_seqs = settings_of(settings, "max_num_seqs", 2**31)
        self._bound = settings_of(settings, "plans_in_flight", 2**31)

    def take(self, kind: Kind, payload: list[object], step: Step | None) -> None:
        """One frame, already in the books."""
        self._notice()
        for key, lines in self.lines.items():
            life = self.auditor.books.lives[key]
            if not lines:
                lines.append(Line(0, 0, 0, "arrived", f"{life.num_prompt} prompt tokens, max_tokens {life.max_tokens}"))
            for line in self._lines(life, kind, payload, step, told_end=lines[-1].what == "ended"):
                self._append(lines, line)

    def _notice(self) -> None:
        lives = self.auditor.books.lives
        for key in islice(lives, self._num_seen, None):
            if self._request in (lives[key].request_id, str(key)):
                self.lines[key] = []
        self._num_seen = len(lives)

    def _lines(self, life: Life, kind: Kind, payload: list[object], step: Step | None, *, told_end: bool) -> Iterator[Line]:
        if told_end:
            return
        if kind is Kind.PLAN and step is not None:
            yield from self._planned(life, step)
        elif kind is Kind.RESULT and step is not None:
            yield from self._answered(life, step)
        elif kind is Kind.ABORT and isinstance(payload[0], list) and life.key in payload[0]:
            yield Line(0, 0, 0, "withdrawn", "the client left or a stop string matched")
        elif kind is Kind.LOST and life.home is not None and life.home.executor_id == payload[0] and life.state == "waiting":
            yield Line(life.home.executor_id, 0, 0, "waits again", f"executor {payload[0]} was lost: {payload[1]}")
        if life.state == "ended":
            yield Line(0, 0, 0, "ended", f"{life.end}, {life.num_emitted} tokens")

    def _planned(self, life: Life, step: Step) -> Iterator[Line]:
        step_id = int(step.plan.step_id)
        for index, row in enumerate(step.rows):
            if row.resident.life is life:
                if row.resident.joined_step == step_id:
                    cached = f", {row.resident.num_cached} tokens found in the prefix cache" if row.resident.num_cached else ""
                    yield Line(step.executor_id, step_id, step_id, "placed", f"slot {row.resident.slot}{cached}")
                chunk = "last prefill chunk" if row.kind != PREFILL else "prefill chunk"
                what = "decode" if row.kind == DECODE else f"{chunk} {row.start}..{row.start + row.num_tokens}"
                yield Line(step.executor_id, step_id, step_id, f"ran: {what}", f"row {index}" if row.kind != DECODE else "")
                return
        desk = self.auditor.books.desks[step.executor_id]
        home = life.home if life.state == "resident" else None
        if home is not None and home.executor_id != step.executor_id:
            return
        if home is not None and life.aborted:
            yield Line(step.executor_id, step_id, step_id, "not run", "it was withdrawn")
        elif home is not None:
            yield Line(step.executor_id, step_id, step_id, "not run", self._why_left_out(desk, step, home))
        elif life.state == "waiting" and not life.aborted:
            what = "waits" if life.num_placed == 0 else "preempted, waits"
            yield Line(step.executor_id, step_id, step_id, what, self._why_waiting(desk, step, life))

    def _answered(self, life: Life, step: Step) -> Iterator[Line]:
        result = step.result
        for index, row in enumerate(step.rows):
            if row.resident.life is life and result is not None:
                step_id = int(step.plan.step_id)
                if index in result.skipped_row:
                    yield Line(step.executor_id, step_id, step_id, "skipped", "it had ended before the plan ran")
                for error in result.row_errors:
                    if error.row == index:
                        yield Line(step.executor_id, step_id, step_id, f"failed: {error.error.code}", error.error.message)

    def _why_left_out(self, desk: Desk, step: Step, home: Resident) -> str:
        life, free = home.life, desk.num_free_blocks
        limit = min(life.num_prompt + max(life.max_tokens, 1) - 1, desk.caps.max_model_len)
        used = sum(row.num_tokens for row in step.rows)
        end = home.upper + 1 if home.upper >= home.num_known else home.num_known
        need = -(-end // desk.caps.block_size) - len(home.blocks)
        if home.upper >= limit:
            return "every row that max_tokens allows is already in flight"
        if used >= min(self._budget, desk.caps.max_num_batched_tokens):
            return f"token budget: {used} tokens went to {len(step.rows)} other rows"
        if need > free:
            return f"blocks: it needs {need} more, {free} are free"
        if home.discarded:
            return "a prefix that it relied on was never computed; it will be computed again"
        return "it is being preempted: its blocks return with its last result"

    def _why_waiting(self, desk: Desk, step: Step, life: Life) -> str:
        used = sum(row.num_tokens for row in step.rows)
        slots = min(self._max_seqs, int(desk.caps.max_num_seqs))
        need = (len(life.tokens) + 1 + desk.caps.block_size - 1) // desk.caps.block_size
        if desk.draining:
            return "this executor drains"
        if len(desk.residents) + len(desk.leaving) >= slots:
            return f"slots: all {slots} are taken"
        if used >= min(self._budget, desk.caps.max_num_batched_tokens):
            return f"token budget: {used} tokens went to {len(step.rows)} rows"
        if need > desk.num_free_blocks:
            return f"blocks: it needs about {need}, {desk.num_free_blocks} are free"
        ahead = sum(1 for other in self.auditor.books.waiting() if other.key < life.key)
        if ahead:
            return f"queue: {ahead} older requests wait in front of it"
        return "it waits for a prefix that this step computes, for a slot on its way back, or for another executor"

    def _append(self, lines: list[Line], line: Line) -> None:
        if lines and lines[-1].joins(line) and line.first_step:
            lines[-1].last_step = line.last_step
            lines[-1].count += 1
        else:
            lines.append(line)
