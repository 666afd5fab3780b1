"""What the executors counted and timed, step by step, read off a recording: plans say who ran, results say what it took."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from drumline.plan.v1 import plan_pb2 as pb
from drumline.trace.frames import Frame, Kind
from drumline.trace.reader import open_recordings


@dataclass(frozen=True, slots=True)
class Step:
    """One answered plan that had rows.

    Attributes:
        planned_ns, answered_ns: monotonic clock of this machine.
        decode: all rows decode one token.
        steady: a decode step with the rows of the decode step right before it.
        copies: row copies into a batched cache, counted by the executor.
        strips: row copies to strip or to add a dead prefix.
        needless: assemblies that a kept cohort did not need.
        device_ns: assembling, forward and sampling, on the executor.
    """

    planned_ns: int
    answered_ns: int
    num_rows: int
    decode: bool
    steady: bool
    copies: int
    strips: int
    needless: int
    device_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Steps of a stretch of time. None = there was no such step to count.

    Attributes:
        decode_tokens_per_s: rows of decode steps over their time on the executor: neither prompts nor waiting are in it.
        decode_rows: rows per decode step.
        copies_per_step: over all steps. steady_copies: mean over steady steps; steady_copies_p50: their median.
        copies_per_row: in steady steps, mean copies over mean rows; 2 x layers where every step joins every row.
    """

    num_steps: int
    num_decode_steps: int
    num_steady_steps: int
    decode_tokens_per_s: float | None
    decode_rows: float | None
    copies_per_step: float | None
    steady_copies: float | None
    steady_copies_p50: float | None
    copies_per_row: float | None
    num_needless: int


def read_steps(folder: Path) -> list[Step]:
    """All steps of all recordings in a folder. Raises UnreadableRecording."""
    return [step for recording in open_recordings([folder]) for step in steps_in(recording)]


def steps_in(frames: Iterable[Frame]) -> Iterator[Step]:
    """Steps of one recording of one executor, in order."""
    flying: deque[tuple[int, list[int], bool, bool]] = deque()
    slots: list[int] = []
    before: list[int] = []  # rows of the last plan, if it was a decode step
    for frame in frames:
        if frame.kind is Kind.PLAN:
            plan = pb.StepPlan.FromString(frame.payload[1])
            decode = plan.repeat_rows or (bool(plan.slot) and set(plan.row_kind) == {pb.ROW_KIND_DECODE})
            rows = slots if plan.repeat_rows else list(plan.slot)
            steady = decode and rows == before and not plan.new_sequences
            if rows:
                slots, before = rows, rows if decode else []
            flying.append((frame.t_ns, rows, decode, steady))
        elif frame.kind is Kind.RESULT and flying:
            planned_ns, rows, decode, steady = flying.popleft()
            if rows:
                yield _step(pb.StepResult.FromString(frame.payload[1]), planned_ns, frame.t_ns, rows=rows, kinds=(decode, steady))
        elif frame.kind is Kind.LOST:
            flying.clear()


def _step(result: pb.StepResult, planned_ns: int, answered_ns: int, *, rows: Sequence[int], kinds: tuple[bool, bool]) -> Step:
    timing, copies = result.timing, result.copies
    return Step(
        planned_ns=planned_ns,
        answered_ns=answered_ns,
        num_rows=len(rows) - len(result.skipped_row),
        decode=kinds[0],
        steady=kinds[1],
        copies=copies.cache_in,
        strips=copies.strip,
        needless=copies.needless_in,
        device_ns=timing.assemble_ns + timing.draft_ns + timing.forward_ns + timing.sample_ns,
    )


def within(steps: Sequence[Step], *, since_ns: int, until_ns: int) -> list[Step]:
    """Steps that lie in a stretch of time as a whole."""
    return [step for step in steps if since_ns <= step.planned_ns and step.answered_ns <= until_ns]


def full_step_ms(steps: Sequence[Step], *, num_rows: int) -> float | None:
    """Median time on the executor of steady decode steps with `num_rows` rows; None when there was none."""
    times = [step.device_ns for step in steps if step.steady and step.num_rows == num_rows]
    return median(times) / 1e6 if times else None


def summary_of(steps: Sequence[Step]) -> Summary:
    """See `Summary`."""
    decodes = [step for step in steps if step.decode]
    steady = [step for step in decodes if step.steady]
    device_s = sum(step.device_ns for step in decodes) / 1e9
    num_rows = sum(step.num_rows for step in steady)
    return Summary(
        num_steps=len(steps),
        num_decode_steps=len(decodes),
        num_steady_steps=len(steady),
        decode_tokens_per_s=sum(step.num_rows for step in decodes) / device_s if device_s else None,
        decode_rows=fmean(step.num_rows for step in decodes) if decodes else None,
        copies_per_step=fmean(step.copies for step in steps) if steps else None,
        steady_copies=fmean(step.copies for step in steady) if steady else None,
        steady_copies_p50=median(step.copies for step in steady) if steady else None,
        copies_per_row=sum(step.copies for step in steady) / num_rows if num_rows else None,
        num_needless=sum(step.needless for step in steps),
    )
