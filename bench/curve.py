"""`drumline bench curve`: preflight, every cell with fresh services, the verdict. Runs for hours, survives its terminal."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from rich.console import Console

from bench.curve_cells import Cell, cells_of
from bench.curve_config import CurveSettings, shrunk
from bench.curve_hangup import surviving_hangup
from bench.curve_measure import Vocabulary, measure_cell
from bench.curve_plot import draw
from bench.curve_preflight import PreflightRefused, preflight
from bench.curve_results import JSON, PNG, SUMMARY, Table, clear, json_of, summary_of
from bench.curve_row import Row
from bench.curve_status import StatusFile
from bench.curve_verdict import cells_without
from drumline import settings
from launcher.door import progress_bar

REFUSED: Final = 2


def main(argv: list[str]) -> int:
    """0 = every cell has its rate; 1 = some have none, or it was interrupted; 2 = refused, nothing was measured."""
    wanted = shrunk(settings.load(CurveSettings, section="curve", argv=argv))
    errors = Console(stderr=True)
    try:
        clear(wanted.out)
        with surviving_hangup(), StatusFile(wanted.status_file or wanted.out / "status") as status:
            return _measured(wanted, status)
    except PreflightRefused as refusal:
        errors.print(f"drumline bench curve: nothing was measured: {refusal}", style="red", markup=False, soft_wrap=True)
        return REFUSED
    except OSError as error:
        errors.print(f"drumline bench curve: {error}", style="red", markup=False, soft_wrap=True)
        return 1


def _measured(wanted: CurveSettings, status: StatusFile) -> int:
    cells, table = cells_of(wanted), Table(wanted.out)
    status.say(f"began: {len(cells)} cells, {wanted.layout}, seed {wanted.seed}")
    try:
        preflight(wanted, status.say)
    except PreflightRefused as refusal:
        status.done(f"refused: {refusal}")
        raise
    with progress_bar(len(cells), "curve") as progress:
        interrupted = asyncio.run(_run(cells, wanted, table, status, progress))
    if table.rows:
        _write(table.rows, wanted)
    lost = cells_without(table.rows)
    status.done(f"{'interrupted: ' if interrupted else ''}{len(table.rows)} of {len(cells)} cells, {len(lost)} without a rate")
    return int(interrupted or bool(lost))


async def _run(cells: list[Cell], wanted: CurveSettings, table: Table, status: StatusFile, progress: Callable[[int], None]) -> bool:
    """Cell by cell; whether a signal ended it early. What is measured by then is kept."""
    words = Vocabulary(wanted.seed)
    with _stoppable() as stopped:
        for index, cell in enumerate(cells):
            status.say(f"cell {index + 1}/{len(cells)} {cell.name} begins: {cell.arm.admission}, {cell.arm.lengths}")
            work = asyncio.create_task(measure_cell(cell, wanted, words=words, say=status.say))
            waited: tuple[asyncio.Future[Any], ...] = (work, stopped)
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                return True
            row = work.result()
            table.add(row)
            status.say(f"cell {index + 1}/{len(cells)} {cell.name} ends: {_told(row)}")
            progress(index + 1)
    return False


@contextlib.contextmanager
def _stoppable() -> Iterator["asyncio.Future[None]"]:
    """A future that SIGINT or SIGTERM sets, so that services are ended in order."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not stopped.done():
            stopped.set_result(None)

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield stopped
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _told(row: Row) -> str:
    rate, rows = row.get("tok_s"), row.get("decode_rows")
    if rate is None:
        return f"NA: {row.why('tok_s')}"
    return f"{rate:.1f} tokens/s, {'NA' if rows is None else format(rows, '.1f')} rows per decode step"


def _write(rows: list[Row], wanted: CurveSettings) -> None:
    (wanted.out / JSON).write_text(json_of(rows, wanted=wanted), encoding="utf-8")
    summary = summary_of(rows, wanted=wanted)
    (wanted.out / SUMMARY).write_text(summary, encoding="utf-8")
    draw(wanted.out / PNG, rows, title=next((row.provenance for row in rows if row.values), "nothing was measured"))
    with contextlib.suppress(OSError):  # a terminal that has gone costs nothing that was measured
        print(summary, end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
