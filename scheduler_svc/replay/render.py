"""Recordings as tables for a terminal."""

from collections.abc import Iterable, Sequence
from statistics import mean

from rich.table import Table

from drumline.common.v1.common_pb2 import SamplingParams
from drumline.plan.v1.plan_pb2 import StepResult
from drumline.trace.reader import Recording
from scheduler_svc.replay.books import DECODE, PREFILL, Desk, Life, Step
from scheduler_svc.replay.compare import rows_of
from scheduler_svc.replay.diff import RecordingDiff
from scheduler_svc.replay.explain import Line
from scheduler_svc.replay.findings import Finding
from scheduler_svc.replay.whatif import Measures

_TIMES = ("queue", "assemble", "draft", "forward", "sample", "idle")
_KINDS = {PREFILL: "prefill", DECODE: "decode"}


def step_line(step: Step) -> tuple[str, ...]:
    """One step in one line: executor, step, rows, tokens fed, emitted, what enters and leaves, time."""
    plan, result = step.plan, step.result
    fed = sum(row.num_tokens for row in step.rows)
    moves = [f"+{len(plan.new_sequences)}"] if plan.new_sequences else []
    moves += [f"-{len(plan.freed_slots)}"] if plan.freed_slots else []
    moves += [f"x{len(plan.aborted_slots)}"] if plan.aborted_slots else []
    emitted = str(len(result.token_ids)) if result else "unanswered"
    ends = str(len(result.finished_row)) if result else ""
    time = f"{(step.result_t_ns - step.t_ns) / 1e6:.2f}" if result and step.t_ns else ""
    rows = f"{len(step.rows)}{' repeated' if plan.repeat_rows else ''}"
    return str(step.executor_id), str(plan.step_id), rows, str(fed), emitted, ends, " ".join(moves), str(len(plan.block_id)), time


def steps_table(steps: Iterable[Step]) -> Table:
    """Many steps, one line each."""
    table = Table(box=None, header_style="dim")
    for name in ("executor", "step", "rows", "fed", "emitted", "ended", "slots", "blocks", "ms"):
        table.add_column(name, justify="right")
    for step in steps:
        table.add_row(*step_line(step))
    return table


def step_table(step: Step) -> Table:
    """One step, one line per row."""
    plan, result = step.plan, step.result
    title = f"executor {step.executor_id} step {plan.step_id}: cohort {plan.cohort_id}, based on result {plan.based_on_result_step}"
    if plan.freed_slots:
        title += f", frees slots {list(plan.freed_slots)}"
    if plan.aborted_slots:
        title += f", aborts slots {list(plan.aborted_slots)}"
    if plan.copy_src:
        title += f", copies blocks {list(zip(plan.copy_src, plan.copy_dst, strict=False))}"
    caption = "not answered"
    if result is not None:
        caption = ", ".join(f"{name} {getattr(result.timing, f'{name}_ns') / 1e6:.3f} ms" for name in _TIMES)
        caption += f"; {result.num_blocks_in_use} blocks in use"
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", header_style="dim", box=None)
    for name in ("row", "slot", "request", "kind", "from", "fed", "new blocks", "length", "emitted", "end"):
        table.add_column(name, justify="left" if name in ("request", "kind", "end") else "right")
    said = rows_of(result, num_rows=len(step.rows)) if result is not None else [{}] * len(step.rows)
    new = {entry.slot: entry for entry in plan.new_sequences}
    for index, (row, one) in enumerate(zip(step.rows, said, strict=True)):
        blocks = [str(block) for at, block in zip(plan.block_row, plan.block_id, strict=False) if at == index]
        kind = _KINDS.get(row.kind, "prefill, last")
        if (entry := new.get(row.resident.slot)) is not None:
            kind += f" (enters, {entry.num_cached_tokens} cached)" if entry.num_cached_tokens else " (enters)"
        table.add_row(
            str(index),
            str(row.resident.slot),
            row.resident.life.request_id or str(row.resident.life.key),
            kind,
            str(row.start),
            str(row.num_tokens),
            " ".join(blocks),
            str(one.get("length", "")),
            " ".join(map(str, one.get("token_ids", ()))),
            _end(one),
        )
    return table


def _end(one: dict[str, object]) -> str:
    if not one:
        return ""
    reason = {0: "", 1: "stop", 2: "length", 3: "aborted", 4: "error", 5: "deadline"}.get(int(str(one["finish_reason"])), "?")
    return "skipped" if one["skipped"] else str(one["error"] or reason)


def row_table(desk: Desk, steps: Sequence[Step], *, row: int, replayed: dict[int, StepResult]) -> Table:
    """Everything about one row of the last of `steps`: tokens, positions, blocks, sampling, and what came back around it."""
    step = steps[-1]
    one = step.rows[row]
    resident, life = one.resident, one.resident.life
    title = f"executor {step.executor_id} step {step.plan.step_id} row {row}"
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    positions = range(one.start, one.start + one.num_tokens)
    fed = [life.tokens[at] if at < len(life.tokens) else "?" for at in positions]
    size = desk.caps.block_size
    table.add_row("request", f"{life.request_id} (key {life.key}), slot {resident.slot}, entered in step {resident.joined_step}")
    table.add_row("row", f"{_KINDS.get(one.kind, 'prefill, last')} positions {positions.start}..{positions.stop - 1}, tokens {fed}")
    table.add_row("prompt", f"{life.num_prompt} tokens: {life.tokens[: life.num_prompt]}")
    table.add_row("output", f"{life.num_emitted} tokens: {life.tokens[life.num_prompt :]}")
    lengths = f"confirmed {resident.length}, upper {resident.upper}, found in the prefix cache {resident.num_cached}"
    table.add_row("lengths", lengths)
    table.add_row("block table", ", ".join(f"{at * size}..: {block}" for at, block in enumerate(resident.blocks)))
    sampling = SamplingParams.FromString(life.sampling) if life.sampling else SamplingParams()
    table.add_row("sampling", " ".join(str(sampling).split()))
    for other in steps:
        for index, candidate in enumerate(other.rows):
            if candidate.resident is resident and other.result is not None:
                table.add_row(f"step {other.plan.step_id} recorded", _told(other.result, index, num_rows=len(other.rows)))
                if (again := replayed.get(int(other.plan.step_id))) is not None:
                    table.add_row(f"step {other.plan.step_id} replayed", _told(again, index, num_rows=len(other.rows)))
    return table


def _told(result: StepResult, index: int, *, num_rows: int) -> str:
    one = rows_of(result, num_rows=num_rows)[index]
    return ", ".join(f"{name} {value}" for name, value in one.items() if value not in (None, "", False, 0, []))


def story_table(life: Life, lines: Sequence[Line]) -> Table:
    """What happened to one request, step by step."""
    title = f"request {life.request_id or '?'} (key {life.key}): {life.num_prompt} prompt tokens, "
    title += f"{life.num_emitted} emitted, {life.end or life.state}"
    table = Table(title=title, title_justify="left", header_style="dim", box=None)
    for name in ("executor", "steps", "what", "why"):
        table.add_column(name)
    for line in lines:
        steps = "" if not line.first_step else str(line.first_step)
        if line.last_step != line.first_step:
            steps += f"-{line.last_step} ({line.count})"
        table.add_row(str(line.executor_id or ""), steps, line.what, line.why)
    return table


def header_table(recording: Recording, *, num_frames: int, num_steps: int) -> Table:
    """What a recording is."""
    header = recording.header
    table = Table(box=None, show_header=False)
    last = recording.segments[-1].header.segment
    table.add_row("session", f"{header.session_epoch}, segments {header.segment}..{last}, {recording.ending}")
    table.add_row("software", f"{header.software_version}, protocol {header.protocol_version}, trace {header.trace_version}")
    table.add_row("model", header.model_digest[:16] or "none yet")
    table.add_row("limits", ", ".join(f"{name} {value}" for name, value in header.settings.get("limits", {}).items()))
    table.add_row("frames", f"{num_frames}, {num_steps} steps")
    return table


def findings_table(findings: Sequence[Finding]) -> Table:
    """What an audit found."""
    table = Table(title="audit", title_justify="left", header_style="dim", box=None)
    for name in ("finding", "executor", "step", "row", "slot", "request", "detail"):
        table.add_column(name, overflow="fold")
    for one in findings:
        where = ("" if value is None else str(value) for value in (one.row, one.slot))
        table.add_row(str(one.name), str(one.executor_id), str(one.step), *where, one.request_id, one.detail)
    return table


def diff_table(found: RecordingDiff) -> Table:
    """What two recordings do not have in common."""
    table = Table(header_style="dim", box=None)
    for name in ("what", "A", "B"):
        table.add_column(name, overflow="fold")
    for name, (a, b) in found.settings.items():
        table.add_row(f"setting {name}", str(a), str(b))
    for kind, (number, field, a, b) in found.first.items():
        table.add_row(f"{kind} {number}: {field}", str(a), str(b))
    for request_id, position, token, other in found.outputs[:50]:
        table.add_row(f"request {request_id} output token {position}", str(token), str(other))
    return table


def whatif_table(columns: dict[str, Measures]) -> Table:
    """Measures side by side; everything but the recorded column is simulated."""
    table = Table(header_style="dim", box=None)
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")

    def line(name: str, values: Iterable[str]) -> None:
        table.add_row(name, *values)

    sides = list(columns.values())
    line("steps", (str(one.num_steps) for one in sides))
    line("mean rows", (f"{one.mean_rows:.2f}" for one in sides))
    line("tokens", (str(one.num_tokens) for one in sides))
    line("preemptions", (str(one.num_preemptions) if one.num_preemptions >= 0 else "NA" for one in sides))
    line("refused", (str(one.num_refused) if one.num_refused >= 0 else "NA" for one in sides))
    line("TTFT steps, mean", (f"{mean(one.ttft_steps):.1f}" if one.ttft_steps else "NA" for one in sides))
    line("TTFT steps, worst", (str(max(one.ttft_steps)) if one.ttft_steps else "NA" for one in sides))
    line("TTFT ms, mean", (f"{mean(one.ttft_ns) / 1e6:.1f}" if one.ttft_ns else "NA" for one in sides))
    line("whole session, s", (f"{one.span_ns / 1e9:.3f}" for one in sides))
    return table
