"""The Prometheus exposition and the throughput line, both made from a `View`.

A scrape never changes anything and an error in it never reaches the step loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_svc.accounts import StepAccounts
from scheduler_svc.core.drafting import DraftTotals
from scheduler_svc.view import ExecutorView, View

_LOG = logging.getLogger(__name__)
_PREFIX: Final = "drumline:"
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class SchedulerCollector(Collector):
    """Turns a View into metrics at each scrape. Names are vLLM's, with our prefix, where the meaning is the same."""

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        view = self._view()
        yield from _gauges(view)
        yield from _counters(view)
        yield from _steps(view.executors)
        yield from _drafts(view.executors)
        yield _grants(view.executors)


def _gauges(view: View) -> Iterable[Metric]:
    blocks = sum(one.num_blocks for one in view.executors)
    used = sum(one.num_blocks_used for one in view.executors)
    rows: list[tuple[str, str, float]] = [
        ("num_requests_running", "Sequences that have a slot on an executor.", view.num_resident),
        ("num_requests_waiting", "Sequences waiting for a first slot, or preempted.", view.num_waiting),
        ("num_sequences_admitted", "Live sequences: waiting and resident.", view.num_waiting + view.num_resident),
        ("num_rows_scheduled", "Rows of the last plans, all executors.", view.num_scheduled),
        ("num_tokens_waiting", "Prompt tokens waiting for a first slot.", view.num_waiting_tokens),
        ("kv_cache_usage_perc", "Share of KV blocks held by sequences, 0 to 1.", used / blocks if blocks else 0.0),
        ("num_executors_ready", "Executors that take new rows.", sum(one.state == "ready" for one in view.executors)),
        ("draining", "1 while nothing new is taken.", float(view.draining)),
    ]
    for name, text, value in rows:
        yield GaugeMetricFamily(_PREFIX + name, text, value=value)


def _counters(view: View) -> Iterable[Metric]:
    rows: list[tuple[str, str, int]] = [
        ("prompt_tokens", "Prompt tokens of sequences that got their first slot.", view.num_prompt_tokens),
        ("generation_tokens", "Tokens emitted.", view.num_generated_tokens),
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", view.prefix_queries),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", view.prefix_hits),
        ("num_preemptions", "Sequences that lost their blocks to others.", view.num_preemptions),
        ("sequences_admitted", "Sequences taken into the queue.", view.num_admitted),
        ("late_entries_dropped", "Results for sequences that nobody waits for any more.", view.num_late_dropped),
        ("executors_lost", "Executor sessions that ended.", view.num_executors_lost),
        (
            "cohort_decisions",
            "Times that the bucketed or the ragged rule chose a bucket; 0 where everything mixes.",
            view.num_decisions,
        ),
        ("cohort_buckets", "Buckets that there were to choose from.", view.num_buckets),
        ("cohort_rows_offered", "Sequences that could have run, over all decisions.", view.num_rows_offered),
        ("cohort_rows_chosen", "Sequences of the chosen buckets; chosen / decisions is the effective batch.", view.num_rows_chosen),
        ("gateways_dropped", "Gateways cut because they did not read.", view.num_gateways_dropped),
    ]
    for name, text, value in rows:
        yield CounterMetricFamily(_PREFIX + name, text, value=value)


def _steps(executors: Sequence[ExecutorView]) -> Iterable[Metric]:
    columns: list[tuple[str, str, Callable[[StepAccounts], float]]] = [
        ("steps", "Plans answered.", lambda a: a.num_steps),
        ("step_queue_seconds", "Time of plans behind earlier plans on the executor.", lambda a: a.queue_ns / 1e9),
        ("step_wire_seconds", "Time of plans and results between scheduler and executor.", lambda a: a.wire_ns / 1e9),
        ("step_device_seconds", "Time of steps on the executor.", lambda a: a.device_ns / 1e9),
        ("executor_idle_seconds", "Time without a plan in hand while a row could run.", lambda a: a.idle_ns / 1e9),
        ("executor_runnable_seconds", "Time in which a row could run.", lambda a: a.runnable_ns() / 1e9),
    ]
    for name, text, value_of in columns:
        family = CounterMetricFamily(_PREFIX + name, text, labels=["executor"])
        for one in executors:
            family.add_metric([one.address], value_of(one.accounts))
        yield family


def _drafts(executors: Sequence[ExecutorView]) -> Iterable[Metric]:
    """Only of executors that draft: who has none has no acceptance either, which is not an acceptance of 0."""
    drafting = [(one.address, one.drafts) for one in executors if one.drafts is not None]
    columns: list[tuple[str, str, Callable[[DraftTotals], int]]] = [
        ("num_drafts", "Rows that verified drafts, over all steps.", lambda t: t.num_drafts),
        ("num_draft_tokens", "Drafts verified.", lambda t: t.num_draft_tokens),
        ("num_accepted_tokens", "Drafts that were right and emitted.", lambda t: t.num_accepted_tokens),
        ("num_decode_rows", "Decode rows of all steps, with drafts or without.", lambda t: t.num_rows),
        (
            "num_decode_tokens",
            "Tokens that decode rows emitted; divided by num_decode_rows, tokens per row and step.",
            lambda t: t.num_tokens,
        ),
    ]
    for name, text, value_of in columns:
        family = CounterMetricFamily(f"{_PREFIX}spec_decode_{name}", text, labels=["executor"])
        for address, totals in drafting:
            family.add_metric([address], value_of(totals))
        yield family
    name, text = "num_accepted_tokens_per_pos", "Drafts that were right and emitted, by place; the first is 0."
    family = CounterMetricFamily(f"{_PREFIX}spec_decode_{name}", text, labels=["executor", "position"])
    for address, totals in drafting:
        for place, count in enumerate(totals.accepted_at):
            family.add_metric([address, str(place)], count)
    yield family


def _grants(executors: Sequence[ExecutorView]) -> Metric:
    family = GaugeMetricFamily(
        _PREFIX + "ragged_granted", "1 where rows of different lengths may share a step.", labels=["executor", "layout"]
    )
    for one in executors:
        if one.layout:
            family.add_metric([one.address, one.layout], float(one.ragged_granted))
    return family


class ThroughputLine:
    """Makes the throughput line of one window after another."""

    def __init__(self, view: View) -> None:
        self._before = view

    def next(self, view: View, *, seconds: float) -> str | None:
        """The line of the window that ends now; None if no sequence and no token came in it."""
        before, self._before = self._before, view
        tokens = view.num_prompt_tokens + view.num_generated_tokens - before.num_prompt_tokens - before.num_generated_tokens
        if not tokens and view.num_admitted == before.num_admitted:
            return None
        queries = view.prefix_queries - before.prefix_queries
        rate = f"{tokens / seconds:.1f}" if tokens else "NA (no step finished)"
        hits = f"{100 * (view.prefix_hits - before.prefix_hits) / queries:.1f}%" if queries else "NA (no prompt looked up)"
        return f"Throughput (T/s) {rate}, Prefix cache hitrate {hits}, {view.num_resident} running, {view.num_waiting} waiting"


async def log_throughput(view: Callable[[], View], *, interval_s: float) -> None:
    """Logs a line per window in which something happened. Until cancelled."""
    line = ThroughputLine(view())
    while True:
        await asyncio.sleep(interval_s)
        text = line.next(view(), seconds=interval_s)
        if text is not None:
            _LOG.info("%s", text)


@contextlib.asynccontextmanager
async def exposition(view: Callable[[], View], *, host: str, port: int) -> AsyncIterator[int]:
    """Serves `GET /metrics` on the event loop (a scrape thread would race the core); yields the bound port."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SchedulerCollector(view))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                head = await reader.readuntil(b"\r\n\r\n")
            found = head.split(b" ", 2)[:2] in ([b"GET", b"/metrics"], [b"GET", b"/"])
            body = generate_latest(registry) if found else b""
            status = "200 OK" if found else "404 Not Found"
            lines = [
                f"HTTP/1.1 {status}",
                f"Content-Type: {_CONTENT_TYPE}",
                f"Content-Length: {len(body)}",
                "Connection: close",
                "",
                "",
            ]
            writer.write("\r\n".join(lines).encode() + body)
            await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            _LOG.debug("a scrape went wrong: %s", type(error).__name__)
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port, limit=16 * 1024)
    async with server:
        yield server.sockets[0].getsockname()[1]
