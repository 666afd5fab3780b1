"""`python -m bench`: one table of throughput and latency, measured over HTTP from one client. `price` and `curve` compare."""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import httpx
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench import report
from bench.client import BenchError, Target
from bench.config import BenchSettings
from bench.measure import Measured, measure
from bench.server import Server, Watch, handed_on, started
from bench.words import find_words
from bench.workloads import SHAPES, Request, Shape, quickened, requests_of
from drumline import settings

COMPARISONS: Final = {name: f"bench.{name}" for name in settings.BENCHES}
"""Commands behind `drumline bench` with settings of their own; imported when called."""


def main(argv: list[str] | None = None) -> int:
    """Runs the workloads and prints the table; 1 = the server did not do what was asked."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given and given[0] in COMPARISONS:
        status: int = importlib.import_module(COMPARISONS[given[0]]).main(given[1:])
        return status
    own, flags = handed_on(given)
    wanted = settings.load(BenchSettings, section="bench", argv=own)
    errors = Console(stderr=True)
    try:
        results = asyncio.run(_run(wanted, flags))
    except (BenchError, httpx.HTTPError, OSError) as error:
        errors.print(f"bench: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    Console(width=None if sys.stdout.isatty() else 200).print(report.table_of(results))
    for warning in report.warnings_of(results):
        errors.print(f"bench: {warning}", style="yellow", markup=False, soft_wrap=True)
    if wanted.json_file:
        wanted.json_file.write_text(report.json_of(results, seed=wanted.seed, flags=flags), encoding="utf-8")
    if wanted.markdown_file:
        wanted.markdown_file.write_text(report.markdown_of(results), encoding="utf-8")
    return 0


async def _run(wanted: BenchSettings, flags: Sequence[str]) -> dict[Shape, list[Measured]]:
    shapes = [quickened(SHAPES[name]) if wanted.quick else SHAPES[name] for name in wanted.workload]
    results: dict[Shape, list[Measured]] = {shape: [] for shape in shapes}
    headers = {"authorization": f"Bearer {wanted.api_key}"} if wanted.api_key else {}
    async with _server(wanted, flags) as server:
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60, trust_env=False) as http:
            model = str((await http.get("/v1/models")).raise_for_status().json()["data"][0]["id"])
            words = await find_words(http, model=model, seed=wanted.seed)
        target = Target(server.url, model, wanted.api_key)
        watch = Watch(server)
        # Kernels compile and pages are touched before anything counts.
        await measure(target, [[Request(tuple(words[:16]), 8)]] * 2, watch=watch)
        with Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True)
        ) as progress:
            for repetition in range(wanted.repetitions):
                for shape in shapes:
                    task = progress.add_task(f"{shape.name} {shape.title} ({repetition + 1}/{wanted.repetitions})", total=1)
                    streams = requests_of(shape, words, seed=wanted.seed, repetition=repetition)
                    results[shape].append(await measure(target, streams, watch=watch))
                    progress.update(task, completed=1, description=f"{shape.name} {results[shape][-1].tokens_per_s:.0f} tokens/s")
    return results


@asynccontextmanager
async def _server(wanted: BenchSettings, flags: Sequence[str]) -> AsyncIterator[Server]:
    """The server under test."""
    if not wanted.url:
        async with started(flags) as server:
            yield server
        return
    if flags:
        raise BenchError("flags behind -- are for a server that bench starts itself; leave out --url")
    yield Server(wanted.url.rstrip("/").removesuffix("/v1"))


if __name__ == "__main__":
    sys.exit(main())
