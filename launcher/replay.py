"""`drumline replay`: is a recorded session reproducible, and if not, where is the first difference?

Exit status 0: no difference and a clean audit; 1: a difference or a finding; 2: unreadable, or wrong words on the command line.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from drumline.errors import InvalidRequest
from drumline.trace.reader import Recording, open_recordings
from launcher.door import Door, progress_bar, wide_console
from scheduler_svc.replay import render
from scheduler_svc.replay.against import replay_against_scheduler
from scheduler_svc.replay.executor import Options, Outcome, executors_of, replay_on_executor
from scheduler_svc.replay.survey import Survey, survey, window
from scheduler_svc.replay.whatif import changes_of, read_session, simulate

app = typer.Typer(name="drumline replay", add_completion=False, pretty_exceptions_enable=False)
Paths = Annotated[list[Path], typer.Argument(help="Recordings: *.trace files or their directory.")]


@app.command()
def replay(
    paths: Paths,
    against: Annotated[str, typer.Option(help="executor: run the plans. scheduler: make the plans again.")] = "executor",
    executor: Annotated[
        str, typer.Option(help="host:port of a running executor; none = start a fresh one like the recorded.")
    ] = "",
    model: Annotated[str, typer.Option(help="Model of the fresh executor; none = the default one.")] = "",
    executor_arg: Annotated[list[str] | None, typer.Option(help="One more word for the fresh executor's command line.")] = None,
    until: Annotated[int, typer.Option(min=0, help="Stop behind this step; 0 = replay all.")] = 0,
    dump_row: Annotated[int | None, typer.Option(min=0, help="Show this row of step --until, whatever is known of it.")] = None,
    executor_id: Annotated[int, typer.Option(min=0, help="Only this recorded executor; 0 = all.")] = 0,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Compare on behind the first step that differs.")] = False,
    what_if: Annotated[
        list[str] | None, typer.Option(help="Simulate under other settings: admission=bucketed, max_num_seqs=4.")
    ] = None,
) -> None:
    """Replay a recording on a fresh executor (or against a fresh scheduler) and name the first difference."""
    console = wide_console()
    if against not in ("executor", "scheduler"):
        raise InvalidRequest(f"--against is executor or scheduler, not {against!r}", param="against")
    if dump_row is not None and not until:
        raise InvalidRequest("--dump-row needs --until STEP", param="dump-row")
    failed = False
    for recording in open_recordings(paths):
        if what_if:
            _simulate(recording, what_if, console=console)
            continue
        found = survey(recording)
        if against == "scheduler":
            failed |= _on_scheduler(recording, found, console=console)
        else:
            extra = [*(["--model", model] if model else []), *(executor_arg or [])]
            options = Options(until=until, target=executor, extra=extra, keep_going=keep_going)
            failed |= _on_executors(recording, found, options, dump_row=dump_row, only=executor_id, console=console)
        failed |= _audit(found, console=console)
    raise typer.Exit(1 if failed else 0)


def _on_executors(
    recording: Recording, found: Survey, options: Options, *, dump_row: int | None, only: int, console: Console
) -> bool:
    failed = False
    for executor_id, caps in executors_of(recording).items():
        if only not in (0, executor_id):
            continue
        total = min(found.num_answered.get(executor_id, 0), options.until or 2**62)
        if not total:
            console.print(f"executor {executor_id}: nothing to replay, no plan was answered")
            continue
        with progress_bar(total, f"executor {executor_id}") as advance:
            outcome = replay_on_executor(recording, executor_id, caps, options=options, progress=advance)
        failed |= _tell(outcome, console=console)
        if dump_row is not None and (only or failed or len(found.num_answered) == 1):
            desk, steps = window(recording, executor_id, until=options.until)
            if not steps or dump_row >= len(steps[-1].rows):
                raise InvalidRequest(f"executor {executor_id} has no row {dump_row} in step {options.until}", param="dump-row")
            console.print(render.row_table(desk, steps, row=dump_row, replayed=outcome.results))
    return failed


def _tell(outcome: Outcome, *, console: Console) -> bool:
    counted = f"{outcome.num_steps} steps, {outcome.num_rows} rows, {outcome.num_tokens} tokens"
    console.print(f"executor {outcome.executor_id}: {counted}: {len(outcome.differences)} differences", highlight=False)
    for note in filter(None, (outcome.note, outcome.error and f"the executor ended the stream: {outcome.error}")):
        console.print(f"  {note}", style="yellow", highlight=False, markup=False)
    for one in outcome.differences[:5]:
        console.print(f"  {one}", style="red", highlight=False, markup=False, soft_wrap=True)
    return bool(outcome.differences or outcome.error)


def _on_scheduler(recording: Recording, found: Survey, *, console: Console) -> bool:
    with progress_bar(found.num_plans, "plans") as advance:
        outcome = replay_against_scheduler(recording, progress=advance)
    if outcome.difference is None:
        console.print(f"scheduler: {outcome.num_plans} plans, byte-identical: 0 differences", highlight=False)
        return False
    console.print(f"scheduler: {outcome.num_plans} plans byte-identical, then:", highlight=False)
    console.print(f"  {outcome.difference}", style="red", highlight=False, markup=False, soft_wrap=True)
    return True


def _audit(found: Survey, *, console: Console) -> bool:
    if not found.findings:
        console.print("audit: 0 findings", highlight=False)
        return False
    console.print(render.findings_table(found.findings[:20]))
    console.print(f"audit: {len(found.findings)} findings", style="red", highlight=False)
    return True


def _simulate(recording: Recording, words: list[str], *, console: Console) -> None:
    changes = changes_of(words)
    session = read_session(recording)
    same = simulate(session, changes={})
    other = simulate(session, changes=changes)
    console.print(render.whatif_table({"recorded": session.measured, "sim: as recorded": same, f"sim: {' '.join(words)}": other}))


def main(argv: list[str]) -> int:
    """`drumline replay ARGV`; the exit status."""
    return Door(app).open(argv)
