"""One run of one workload: the load, and what it cost whom."""

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass

from bench.client import Streamed, Target, run_all
from bench.server import Watch
from bench.workloads import Request


@dataclass(frozen=True)
class Measured:
    """What one run showed. Times in seconds; None = not known (the server is not ours to look into).

    Attributes:
        tokens_per_s: output tokens of all streams over the time from the first byte sent to the last byte received.
        cpu_s: processor seconds by service. rss_bytes: resident memory by service at the end.
        client_share: of one processor, used by this process. others_share: of the machine, used by everything that is neither.
        idle_share: of the run's wall time, executors without a plan while a row could run.
    """

    tokens_per_s: float
    num_output_tokens: int
    wall_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    itl_p50_s: float
    itl_p95_s: float
    client_share: float
    others_share: float
    cpu_s: dict[str, float] | None = None
    rss_bytes: dict[str, int] | None = None
    idle_share: float | None = None

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


async def measure(target: Target, streams: Sequence[Sequence[Request]], *, watch: Watch) -> Measured:
    """Runs the streams over HTTP and measures. Raises BenchError."""
    return await measured(lambda: run_all(target, streams), watch=watch)


async def measured(run: Callable[[], Awaitable[Sequence[Streamed]]], *, watch: Watch) -> Measured:
    """The figures of what `run` sees, however it gets its tokens: over HTTP or from within a process."""
    await watch.begin()
    cpu_before = time.process_time()
    answers = await run()
    client_s = time.process_time() - cpu_before
    cost = await watch.end()
    began, ended = min(a.sent_s for a in answers), max(a.last_s for a in answers)
    wall_s = ended - began
    num_tokens = sum(a.num_output_tokens for a in answers)
    ttft, itl = [a.ttft_s for a in answers], gaps_of(answers)
    return Measured(
        tokens_per_s=num_tokens / wall_s,
        num_output_tokens=num_tokens,
        wall_s=wall_s,
        ttft_p50_s=percentile(ttft, 50),
        ttft_p95_s=percentile(ttft, 95),
        itl_p50_s=percentile(itl, 50),
        itl_p95_s=percentile(itl, 95),
        client_share=client_s / cost.wall_s,
        others_share=cost.others_share(client_s=client_s),
        cpu_s=cost.cpu_s,
        rss_bytes=cost.rss_bytes,
        idle_share=cost.idle_share,
    )


def gaps_of(answers: Sequence[Streamed]) -> list[float]:
    """All gaps between tokens of all streams; one zero when every answer was a single event."""
    return [gap for answer in answers for gap in answer.itl_s] or [0.0]


def percentile(values: Sequence[float], percent: int) -> float:
    """The value below which `percent` of the values lie, interpolated; that of a single value is itself."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
