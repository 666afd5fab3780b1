"""One cell: fresh services, the load, the steady window, the recording, the row. What goes wrong makes it NA, with the reason."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import httpx

from bench.client import BenchError
from bench.curve_cells import Cell, lengths_of, requests_of
from bench.curve_config import CurveSettings
from bench.curve_row import Row, row_of
from bench.curve_window import Window, run_window
from bench.house import House, Standing, refusals, standing
from bench.memory import num_blocks
from bench.provenance import provenance_of
from bench.steps import Summary, read_steps, summary_of, within
from bench.words import FEW, find_words
from drumline.errors import DrumlineError

_FAULTS: Final = (BenchError, DrumlineError, httpx.HTTPError, OSError, EOFError, ValueError)


class Vocabulary:
    """The words that prompts are made of: asked of the first server, the same for all, since all serve one model."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._words: Sequence[int] = ()

    async def of(self, house: Standing) -> Sequence[int]:
        """Raises BenchError, httpx.HTTPError."""
        if not self._words:
            async with httpx.AsyncClient(base_url=house.server.url, timeout=60, trust_env=False) as http:
                self._words = await find_words(http, model=house.target.model, seed=self._seed, num_tried=FEW)
        return self._words


async def measure_cell(cell: Cell, wanted: CurveSettings, *, words: Vocabulary, say: Callable[[str], None]) -> Row:
    """Never raises for what a server does. The services' log stays in the cell's folder, the recording goes once it is read."""
    log, record = _fresh(wanted.out / "cells" / cell.name)
    found: list[Standing] = []
    try:
        async with asyncio.timeout(wanted.cell_timeout_s), standing(_house(cell, wanted, record), log=log) as house:
            found.append(house)
            say(f"{cell.name} services are up: {house.grant}")
            window = await _load(cell, wanted, house, words=await words.of(house))
        steps = _steps(record, window)
    except TimeoutError:
        return _missing(cell, found, log=log, reason=f"not over after {wanted.cell_timeout_s:g} s")
    except _FAULTS as error:
        return _missing(cell, found, log=log, reason=f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(record, ignore_errors=True)
    return row_of(cell, window, steps, grant=house.grant, refusal="; ".join(refusals(log)), provenance=_provenance(house))


def _fresh(folder: Path) -> tuple[Path, Path]:
    """Log and recording of a cell, nothing of an earlier run in them."""
    folder.mkdir(parents=True, exist_ok=True)
    log, record = folder / "services.log", folder / "recording"
    log.unlink(missing_ok=True)
    shutil.rmtree(record, ignore_errors=True)
    return log, record


async def _load(cell: Cell, wanted: CurveSettings, house: Standing, *, words: Sequence[int]) -> Window:
    lengths = lengths_of(cell.arm, wanted)
    workers = [requests_of(lengths, words, seed=wanted.seed + worker) for worker in range(cell.batch)]
    least = {"warm_up_s": wanted.warm_up_s, "steady_s": wanted.steady_s}
    return await run_window(house.target, house.server, workers, **least, min_requests=wanted.min_requests)


def _house(cell: Cell, wanted: CurveSettings, record: Path) -> House:
    return House(
        admission=cell.arm.admission,
        layout=wanted.layout,
        plans_in_flight=1,
        max_num_seqs=wanted.max_num_seqs,
        num_blocks=num_blocks(cell.batch, longest=lengths_of(cell.arm, wanted).longest),
        model=wanted.model,
        precision=wanted.precision,
        backend=wanted.backend,
        record=record,
        max_wait_s=max(600.0, wanted.cell_timeout_s),
    )


def _steps(record: Path, window: Window) -> Summary | None:
    try:
        steps = read_steps(record)
    except DrumlineError:
        return None
    return summary_of(within(steps, since_ns=window.began_ns, until_ns=window.ended_ns))


def _missing(cell: Cell, found: Sequence[Standing], *, log: Path, reason: str) -> Row:
    """A row without figures that still says all that is known."""
    said = "; ".join(refusals(log))
    if not found:
        return Row(cell, reasons={"": reason}, refusal=said)
    return Row(cell, reasons={"": reason}, grant=found[0].grant, refusal=said, provenance=_provenance(found[0]))


def _provenance(house: Standing) -> str:
    return provenance_of(house.executor, model=house.target.model).tag()
