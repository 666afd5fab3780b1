"""`drumline bench price`: what layouts A, B and C cost, measured through the real gateway on servers that stand side by side."""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console

from bench import price_report
from bench.client import BenchError
from bench.house import House, standing
from bench.measure import measure
from bench.memory import MARGIN, Geometry, MemoryUnknown, available_bytes, geometry_of, need_of, num_blocks
from bench.order import rotated
from bench.price_arms import ARMS, PriceArm
from bench.price_config import PriceSettings
from bench.price_figures import PriceRun, price_lines
from bench.price_load import longest_of, shrunk, streams_of
from bench.provenance import Provenance, provenance_of
from bench.report import NOISY_SHARE
from bench.server import Watch
from bench.steps import full_step_ms, read_steps, summary_of, within
from bench.words import FEW, find_words
from drumline import settings
from drumline.errors import DrumlineError
from launcher.door import progress_bar, wide_console


@dataclass(frozen=True, slots=True)
class Timed:
    """A run before the recording is read: when it was, monotonic ns, and what the client saw."""

    arm: PriceArm
    num_rows: int
    turn: int
    began_ns: int
    ended_ns: int
    tokens_per_s: float
    others_share: float


def main(argv: list[str]) -> int:
    """0 = measured and printed; 1 = a server failed; 2 = wrong settings, or the servers do not fit into memory."""
    wanted = shrunk(settings.load(PriceSettings, section="price", argv=argv))
    errors = Console(stderr=True)
    try:
        geometry = geometry_of(wanted.model, backend=wanted.backend)
        if why := _too_large(wanted, geometry):
            raise MemoryUnknown(why)
    except MemoryUnknown as error:
        errors.print(f"drumline bench price: nothing was measured: {error}", style="red", markup=False, soft_wrap=True)
        return 2
    total = (1 + wanted.repeats * len(wanted.rows)) * len(ARMS)
    try:
        with progress_bar(total, "price") as progress, tempfile.TemporaryDirectory() as folder:
            runs, provenance = asyncio.run(_run(wanted, Path(folder), progress))
    except (BenchError, DrumlineError, httpx.HTTPError, OSError) as error:
        errors.print(f"drumline bench price: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    _tell(runs, provenance, wanted=wanted, row_copies=geometry.row_copies)
    return 0


def _too_large(wanted: PriceSettings, geometry: Geometry) -> str:
    """Why the servers cannot stand side by side here; "" when they can."""
    longest, most = longest_of(wanted), max(wanted.rows)
    if longest > geometry.max_position:
        return f"rows of {longest} tokens; the model was made for {geometry.max_position}"
    needed = sum(need_of(geometry, num_rows=most, longest=longest, dense=arm.layout != "paged").total for arm in ARMS)
    free = int(available_bytes() * (1 - MARGIN))
    return f"{len(ARMS)} servers need up to {needed >> 20} MiB, {free >> 20} MiB are there" if needed > free else ""


async def _run(wanted: PriceSettings, folder: Path, progress: Callable[[int], None]) -> tuple[list[PriceRun], Provenance]:
    """All arms are started, then measured in turn while the others idle; recordings are read once all have ended."""
    timed: list[Timed] = []
    async with AsyncExitStack() as stack:
        standings = {
            arm.letter: await stack.enter_async_context(standing(_house(arm, wanted, folder), log=folder / f"{arm.letter}.log"))
            for arm in ARMS
        }
        first = standings[ARMS[0].letter]
        async with httpx.AsyncClient(base_url=first.server.url, timeout=60, trust_env=False) as http:
            words = await find_words(http, model=first.target.model, seed=wanted.seed, num_tried=FEW)
        provenance = provenance_of(first.executor, model=first.target.model)
        # turn -1 warms up: kernels compile, pages are touched
        plan = [(-1, min(wanted.rows)), *((turn, rows) for turn in range(wanted.repeats) for rows in wanted.rows)]
        for index, (turn, num_rows) in enumerate(plan):
            streams = streams_of(wanted, words, num_rows=num_rows, turn=turn)
            for place, arm in enumerate(rotated(ARMS, max(turn, 0))):
                began_ns = time.monotonic_ns()
                seen = await measure(standings[arm.letter].target, streams, watch=Watch(standings[arm.letter].server))
                ended_ns = time.monotonic_ns()
                timed.append(Timed(arm, num_rows, turn, began_ns, ended_ns, seen.tokens_per_s, seen.others_share))
                progress(index * len(ARMS) + place + 1)
    return _with_steps([one for one in timed if one.turn >= 0], folder), provenance


def _house(arm: PriceArm, wanted: PriceSettings, folder: Path) -> House:
    most = max(wanted.rows)
    return House(
        admission=arm.admission,
        layout=arm.layout,
        plans_in_flight=arm.plans_in_flight,
        max_num_seqs=most,
        num_blocks=num_blocks(most, longest=longest_of(wanted)),
        model=wanted.model,
        precision=wanted.precision,
        backend=wanted.backend,
        record=folder / arm.letter,
    )


def _with_steps(timed: list[Timed], folder: Path) -> list[PriceRun]:
    steps = {arm.letter: read_steps(folder / arm.letter) for arm in ARMS}
    runs = []
    for one in timed:
        mine = within(steps[one.arm.letter], since_ns=one.began_ns, until_ns=one.ended_ns)
        runs.append(
            PriceRun(
                arm=one.arm.letter,
                num_rows=one.num_rows,
                turn=one.turn,
                tokens_per_s=one.tokens_per_s,
                others_share=one.others_share,
                full_step_ms=full_step_ms(mine, num_rows=one.num_rows),
                steps=summary_of(mine),
            )
        )
    return runs


def _tell(runs: list[PriceRun], provenance: Provenance, *, wanted: PriceSettings, row_copies: int) -> None:
    console = wide_console()
    console.print(price_report.table_of(runs, provenance=provenance, row_copies=row_copies))
    for line in price_lines(runs, tag=provenance.tag()):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if noisy := sum(run.others_share > NOISY_SHARE for run in runs):
        share = max(run.others_share for run in runs)
        words = f"in {noisy} of {len(runs)} runs others used more than {NOISY_SHARE:.0%} of the machine (up to {share:.0%}): repeat"
        Console(stderr=True).print(words, style="yellow", markup=False, soft_wrap=True)
    if wanted.json_file:
        told = price_report.json_of(runs, provenance=provenance, wanted=wanted, row_copies=row_copies)
        wanted.json_file.write_text(told, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
