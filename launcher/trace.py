"""`drumline trace show|explain|diff|export`: what is in a recording. Exit status 0, 1 (`diff`: they differ), 2 (unreadable)."""

from pathlib import Path
from typing import Annotated

import typer

from drumline.errors import InvalidRequest
from drumline.trace.reader import open_recordings
from launcher.door import Door, wide_console
from scheduler_svc.replay import render
from scheduler_svc.replay.diff import diff as diff_recordings
from scheduler_svc.replay.explain import explain as explain_request
from scheduler_svc.replay.perfetto import export as export_timeline
from scheduler_svc.replay.survey import steps_of, survey

app = typer.Typer(name="drumline trace", add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
Paths = Annotated[list[Path], typer.Argument(help="Recordings: *.trace files or their directory.")]
Step = Annotated[int, typer.Option(min=0, help="Show this step row by row; 0 = list the steps.")]
ExecutorId = Annotated[int, typer.Option(min=0, help="Only this recorded executor; 0 = all.")]


@app.command()
def show(
    paths: Paths,
    step: Step = 0,
    executor_id: ExecutorId = 0,
    last: Annotated[int, typer.Option(min=1, help="List at most so many steps, the last ones.")] = 40,
) -> None:
    """Print what a recording is, its steps, or one step row by row: kinds, lengths, blocks, timings."""
    console = wide_console()
    for recording in open_recordings(paths):
        if step:
            tables = [render.step_table(one) for one in steps_of(recording, executor_id=executor_id, step=step)]
            if not tables:
                raise InvalidRequest(f"no step {step} in this recording", param="step")
            for table in tables:
                console.print(table)
            continue
        found = survey(recording)
        console.print(render.header_table(recording, num_frames=found.num_frames, num_steps=found.num_plans))
        console.print(render.steps_table(steps_of(recording, executor_id=executor_id, last=last)))
        if found.findings:
            console.print(render.findings_table(found.findings[:20]))


@app.command()
def explain(
    request: Annotated[str, typer.Argument(help="Request id (the answer's x-request-id header), or key.")], paths: Paths
) -> None:
    """Say for one request of each step whether it ran, and if not, why not."""
    console = wide_console()
    for recording in open_recordings(paths):
        for life, lines in explain_request(recording, request):
            console.print(render.story_table(life, lines))


@app.command()
def diff(a: Annotated[Path, typer.Argument(help="A recording.")], b: Annotated[Path, typer.Argument(help="Another one.")]) -> None:
    """Compare two recordings: settings, first input, plan and result that differ, and each request's output."""
    one, other = (open_recordings([path])[-1] for path in (a, b))
    found = diff_recordings(one, other)
    if found.is_empty:
        wide_console().print("no differences")
        return
    wide_console().print(render.diff_table(found))
    raise typer.Exit(1)


@app.command()
def export(paths: Paths, perfetto: Annotated[Path, typer.Option(help="File to write, for ui.perfetto.dev.")]) -> None:
    """Write a timeline with a track per executor and per request."""
    recordings = open_recordings(paths)
    if len(recordings) > 1:
        raise InvalidRequest(f"{len(recordings)} sessions are there; name the files of one", param="paths")
    with perfetto.open("w", encoding="utf-8") as out:
        count = export_timeline(recordings[0], out)
    wide_console().print(f"{count} events; open the file in ui.perfetto.dev")


def main(argv: list[str]) -> int:
    """`drumline trace ARGV`; the exit status."""
    return Door(app).open(argv)
