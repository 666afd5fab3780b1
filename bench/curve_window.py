"""The load of one cell and its steady window: it begins when every worker has finished one request and ends when each has finished
another one in it (several where workers are few), so that a window never catches only the prompts of workers that move in step."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from bench.client import BenchError, Target, stream
from bench.scrape import Samples, scrape
from bench.server import Cost, Server, Watch
from bench.workloads import Request

SAMPLE_S: Final = 1.0


class Board:
    """How many requests each worker has finished."""

    def __init__(self, num_workers: int) -> None:
        self.finished = [0] * num_workers
        self._moved = asyncio.Event()

    def note(self, worker: int) -> None:
        """One more."""
        self.finished[worker] += 1
        self._moved.set()

    async def all_have_done(self, count: int) -> None:
        """Returns when every worker has finished `count` requests from now on."""
        since = list(self.finished)
        while not all(now >= then + count for now, then in zip(self.finished, since, strict=True)):
            self._moved.clear()
            await self._moved.wait()


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen in a steady window.

    Attributes:
        began_ns, ended_ns: monotonic clock.
        before, after: the scheduler's totals at both ends.
        gauges: its gauges about once a second in between.
        num_requests: finished in it.
    """

    began_ns: int
    ended_ns: int
    before: Samples
    after: Samples
    num_requests: int
    cost: Cost
    client_s: float
    gauges: list[Samples] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.ended_ns - self.began_ns) / 1e9

    def rise(self, name: str) -> float | None:
        """How much a total rose; None when it is not exposed."""
        if name not in self.before or name not in self.after:
            return None
        return self.after[name] - self.before[name]

    def mean(self, name: str) -> float | None:
        """Mean of a gauge; None when it was never seen."""
        seen = [sample[name] for sample in self.gauges if name in sample]
        return fmean(seen) if seen else None


async def run_window(
    target: Target, server: Server, workers: Sequence[Iterator[Request]], *, warm_up_s: float, steady_s: float, min_requests: int
) -> Window:
    """Loads the server until the window is over, then withdraws what still runs. Raises BenchError when a worker fails.

    `min_requests`: least requests in the window, shared among the workers; never less than one each.
    """
    board = Board(len(workers))
    tasks = [asyncio.create_task(_work(target, requests, board=board, worker=number)) for number, requests in enumerate(workers)]
    count = -(-min_requests // len(workers))
    watching = asyncio.create_task(_watch(server, board, warm_up_s=warm_up_s, steady_s=steady_s, count=count))
    try:
        await asyncio.wait([watching, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                await task
        return await watching
    finally:
        for one in (watching, *tasks):
            one.cancel()
        await asyncio.gather(watching, *tasks, return_exceptions=True)


async def _work(target: Target, requests: Iterator[Request], *, board: Board, worker: int) -> None:
    for request in requests:
        await stream(target, request)
        board.note(worker)
    raise BenchError(f"worker {worker} ran out of requests")


async def _watch(server: Server, board: Board, *, warm_up_s: float, steady_s: float, count: int) -> Window:
    if server.metrics_url is None:
        raise BenchError("the server's metrics cannot be read")
    await asyncio.gather(asyncio.sleep(warm_up_s), board.all_have_done(1))
    watch, finished, client_s = Watch(server), sum(board.finished), time.process_time()
    await watch.begin()
    before, began_ns = await scrape(server.metrics_url), time.monotonic_ns()
    gauges = [before]
    ending = asyncio.gather(asyncio.sleep(steady_s), board.all_have_done(count))
    try:
        while not (await asyncio.wait([ending], timeout=SAMPLE_S))[0]:
            gauges.append(await scrape(server.metrics_url))
    finally:
        ending.cancel()
    after, ended_ns = await scrape(server.metrics_url), time.monotonic_ns()
    return Window(
        began_ns=began_ns,
        ended_ns=ended_ns,
        before=before,
        after=after,
        num_requests=sum(board.finished) - finished,
        cost=await watch.end(),
        client_s=time.process_time() - client_s,
        gauges=gauges,
    )
