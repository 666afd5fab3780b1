"""The order of runs: in each repetition of a workload every server has one turn, and who goes first changes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import httpx
from rich.progress import Progress

from bench.measure import measured
from bench.order import rotated
from bench.peers_config import PeersSettings
from bench.peers_contestant import Contestant
from bench.peers_results import DRUMLINE, Results, Run
from bench.peers_stage import DidNotStart, Stage, why
from bench.scrape import Samples, scrape
from bench.server import Watch
from bench.workloads import Shape, requests_of

_SAMPLE_S: Final = 0.5
_OTHER_TEXT: Final = 1000
"""Added to the repetition for each retry: no prefix cache may know its text."""


def sittings(shapes: Sequence[Shape]) -> list[list[Shape]]:
    """Workloads that must follow each other on one server: a warm one needs what the cold one before it left in the cache."""
    grouped: list[list[Shape]] = []
    for shape in shapes:
        if shape.warm and grouped:
            grouped[-1].append(shape)
        else:
            grouped.append([shape])
    return grouped


class Turns:
    """Plays the runs and books them in `results`."""

    def __init__(self, stage: Stage, results: Results, wanted: PeersSettings, progress: Progress) -> None:
        self._stage = stage
        self._results = results
        self._wanted = wanted
        self._progress = progress

    async def play(self, names: Sequence[str], shapes: Sequence[Shape]) -> None:
        """All of them. A server that fails is left out of that workload, one that does not start of all that follow."""
        groups, wanted = sittings(shapes), self._wanted
        task = self._progress.add_task("runs", total=len(groups) * wanted.repetitions * len(names))
        out: set[str] = set()
        for group in groups:
            failed: set[str] = set()
            for repetition in range(wanted.repetitions):
                for name in rotated(names, repetition):
                    self._progress.update(task, description=f"{group[0].name} {name}")
                    if name not in failed | out:
                        try:
                            await self._turn(name, group, repetition)
                        except DidNotStart as error:
                            self._results.failures[name, ""] = why(error)
                            out.add(name)
                        except Exception as error:
                            for shape in group:
                                self._results.failures[name, shape.name] = self._told(error)
                            failed.add(name)
                            await self._stage.close(name)
                    self._progress.advance(task)
            await self._stage.close_fresh()

    def _told(self, error: BaseException) -> str:
        late = f"a run took longer than {self._wanted.run_timeout_s:g} s"
        return late if isinstance(error, TimeoutError) else why(error)

    async def _turn(self, name: str, group: Sequence[Shape], repetition: int) -> None:
        """One sitting, repeated while others disturb it; the quietest try counts."""
        contestant = await self._stage.at_work(name)
        try:
            tries: list[list[Run]] = []
            for attempt in range(1 + self._wanted.retries):
                text = repetition + _OTHER_TEXT * attempt
                runs = [await self._one(name, contestant, shape, repetition, text=text) for shape in group]
                tries.append(runs)
                if not any(run.noisy for run in runs):
                    break
            self._results.runs += min(tries, key=lambda runs: max(run.measured.others_share for run in runs))
        finally:
            self._stage.rest(name)

    async def _one(self, name: str, contestant: Contestant, shape: Shape, repetition: int, *, text: int) -> Run:
        streams = requests_of(shape, self._stage.words, seed=self._wanted.seed, repetition=text)
        seen: list[Samples] = []
        async with asyncio.timeout(self._wanted.run_timeout_s), _sampled(contestant.server.metrics_url, seen):
            figures = await measured(lambda: contestant.run(streams), watch=Watch(contestant.server))
        run = Run(name, shape.name, repetition, figures)
        if name == DRUMLINE and seen:
            peak = max(int(one.get("num_requests_running", 0)) for one in seen)
            preempted = seen[-1].get("num_preemptions_total", 0) - seen[0].get("num_preemptions_total", 0)
            run = Run(name, shape.name, repetition, figures, peak, int(preempted))
        noise = f", others {figures.others_share:.0%}" if run.noisy else ""
        line = f"{shape.name} {name} {repetition + 1}: {figures.tokens_per_s:.1f} tokens/s{noise}"
        self._progress.console.print(line, highlight=False)
        return run


@asynccontextmanager
async def _sampled(metrics_url: str | None, seen: list[Samples]) -> AsyncIterator[None]:
    """Reads the scheduler's metrics before, during and after; nothing where there are none."""
    if not metrics_url:
        yield
        return
    seen.append(await scrape(metrics_url))

    async def sample() -> None:
        while True:
            await asyncio.sleep(_SAMPLE_S)
            with contextlib.suppress(httpx.HTTPError):
                seen.append(await scrape(metrics_url))

    task = asyncio.create_task(sample())
    try:
        yield
        seen.append(await scrape(metrics_url))
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
