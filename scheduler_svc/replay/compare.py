"""Holds a result against the recorded one, row by row and field by field."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from drumline.plan.v1.plan_pb2 import StepResult
from scheduler_svc.replay.books import Step


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that is not the same. `row` is None where the whole step differs."""

    executor_id: int
    step: int
    row: int | None
    field: str
    recorded: object
    replayed: object
    slot: int | None = None
    request_id: str = ""

    def __str__(self) -> str:
        where = f"executor {self.executor_id} step {self.step}"
        where += f" row {self.row} (slot {self.slot}, request {self.request_id or '?'})" if self.row is not None else ""
        return f"{where} field {self.field}: recorded {self.recorded!r}, replayed {self.replayed!r}"


def rows_of(result: StepResult, *, num_rows: int) -> list[dict[str, Any]]:
    """What a result says of each row. Logarithms of probabilities are compared as they are: same device, same bits."""
    counts = list(result.num_emitted) or [1] * num_rows
    ends = dict(zip(result.finished_row, result.finish_reason, strict=False))
    errors = {error.row: error.error.code for error in result.row_errors}
    skipped = set(result.skipped_row)
    scores = {one.row: _scores(one) for one in result.logprobs}
    prompt_scores = {one.row: _scores(one) for one in result.prompt_logprobs}
    rows = []
    at = 0
    for row in range(num_rows):
        count = counts[row] if row < len(counts) else 0
        rows.append(
            {
                "token_ids": list(result.token_ids[at : at + count]),
                "length": _at(result.length, row),
                "finish_reason": ends.get(row, 0),
                "skipped": row in skipped,
                "error": errors.get(row, ""),
                "num_accepted": _at(result.num_accepted, row),
                "lead_pad": _at(result.lead_pad, row),
                "logprobs": scores.get(row),
                "prompt_logprobs": prompt_scores.get(row),
                "digest": _at(result.digest, row),
            }
        )
        at += count
    return rows


def differences(step: Step, replayed: StepResult) -> Iterator[Difference]:
    """Every difference of one step, in row order. A digest is compared only where both sides have it."""
    recorded = step.result
    if recorded is None:
        return
    step_id = int(step.plan.step_id)
    size = len(step.rows)
    pairs = zip(rows_of(recorded, num_rows=size), rows_of(replayed, num_rows=size), step.rows, strict=True)
    for index, (want, got, row) in enumerate(pairs):
        for field, value in want.items():
            if value != got[field] and not (field == "digest" and None in (value, got[field])):
                slot, request_id = row.resident.slot, row.resident.life.request_id
                yield Difference(step.executor_id, step_id, index, field, value, got[field], slot, request_id)
    if len(recorded.token_ids) != len(replayed.token_ids):
        yield Difference(step.executor_id, step_id, None, "num_tokens", len(recorded.token_ids), len(replayed.token_ids))
    if recorded.num_blocks_in_use != replayed.num_blocks_in_use:
        values = recorded.num_blocks_in_use, replayed.num_blocks_in_use
        yield Difference(step.executor_id, step_id, None, "num_blocks_in_use", *values)


def _at(column: Sequence[int], row: int) -> int | None:
    return column[row] if row < len(column) else None


def _scores(one: Any) -> tuple[object, ...]:
    return tuple(one.token_ids), tuple(one.logprobs), tuple(one.top_token_ids), tuple(one.top_logprobs)
