"""Prometheus metrics, named as vLLM names them so that dashboards fit. Absent data is left out, never shown as 0."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.sequences import SchedulerStatus

_TTFT_S: Final = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
_ITL_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
_E2E_S: Final = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0)
_STATUS_GAUGES: Final = (
    ("num_running", "vllm:num_requests_running", "Sequences that have a slot."),
    ("num_waiting", "vllm:num_requests_waiting", "Sequences that wait for a slot."),
    ("num_waiting_tokens", "drumline:num_waiting_tokens", "Prompt tokens that wait for a slot."),
    ("num_scheduled", "drumline:num_scheduled_rows", "Rows in the last plans, all executors."),
)
_STATUS_COUNTERS: Final = (
    ("num_preemptions", "vllm:num_preemptions", "Sequences sent back to the queue for want of memory."),
    ("prefix_queries", "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    ("prefix_hits", "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache."),
)


class Metrics:
    """The gateway's own registry. `status` gives the scheduler's last word about itself, or None."""

    def __init__(self, *, status: Callable[[], SchedulerStatus | None], is_ready: Callable[[], bool]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_StatusCollector(status, is_ready))
        r = self._registry
        self.ttft = Histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", buckets=_TTFT_S, registry=r)
        self.itl = Histogram("vllm:inter_token_latency_seconds", "Between tokens of a sequence.", buckets=_ITL_S, registry=r)
        self.e2e = Histogram("vllm:e2e_request_latency_seconds", "Arrival to end of a request.", buckets=_E2E_S, registry=r)
        self.prompt_tokens = Counter("vllm:prompt_tokens", "Prompt tokens of admitted requests.", registry=r)
        self.generation_tokens = Counter("vllm:generation_tokens", "Tokens given to clients.", registry=r)
        self.success = Counter("vllm:request_success", "Finished sequences.", ["finished_reason"], registry=r)
        self.http = Counter("drumline:http_requests", "HTTP answers.", ["status"], registry=r)

    def expose(self) -> bytes:
        """The text exposition."""
        return generate_latest(self._registry)


class RequestClock:
    """Times of one request, from its arrival (construction) on."""

    def __init__(self, metrics: Metrics, *, num_prompt_tokens: int, num_sequences: int) -> None:
        self._metrics = metrics
        self._num_prompt_tokens = num_prompt_tokens
        self._arrival_s = time.perf_counter()
        self._last_s: list[float | None] = [None] * num_sequences

    def admitted(self) -> None:
        """The scheduler took the request."""
        self._metrics.prompt_tokens.inc(self._num_prompt_tokens)

    def tokens(self, index: int, num_tokens: int) -> None:
        """Tokens of a sequence came just now; several at once count as evenly spaced."""
        if num_tokens <= 0:
            return
        now_s = time.perf_counter()
        last_s = self._last_s[index]
        self._last_s[index] = now_s
        self._metrics.generation_tokens.inc(num_tokens)
        if last_s is None:
            self._metrics.ttft.observe(now_s - self._arrival_s)
            return
        for _ in range(num_tokens):
            self._metrics.itl.observe((now_s - last_s) / num_tokens)

    def finished(self, reason: str) -> None:
        """A sequence ended well."""
        self._metrics.success.labels(reason).inc()

    def ended(self) -> None:
        """The request is over, well or not."""
        self._metrics.e2e.observe(time.perf_counter() - self._arrival_s)


class _StatusCollector(Collector):
    def __init__(self, status: Callable[[], SchedulerStatus | None], is_ready: Callable[[], bool]) -> None:
        self._status = status
        self._is_ready = is_ready

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("drumline:ready", "Whether new requests can be served.", value=float(self._is_ready()))
        status = self._status()
        if status is None:
            return
        for field, name, text in _STATUS_GAUGES:
            yield GaugeMetricFamily(name, text, value=_number(status.fields[field]))
        for field, name, text in _STATUS_COUNTERS:
            yield CounterMetricFamily(name, text, value=_number(status.fields[field]))
        usage = GaugeMetricFamily("vllm:kv_cache_usage_perc", "Share of KV blocks held by sequences, 0..1.", labels=["executor"])
        idle = GaugeMetricFamily(
            "drumline:executor_idle_fraction", "Time without a plan while a row could run.", labels=["executor"]
        )
        for place, executor in enumerate(status.executors):
            if _number(executor["num_blocks"]) > 0:
                usage.add_metric([str(place)], _number(executor["num_blocks_used"]) / _number(executor["num_blocks"]))
            if executor["idle_fraction"] is not None:
                idle.add_metric([str(place)], _number(executor["idle_fraction"]))
        yield usage
        yield idle

    def describe(self) -> Iterator[Metric]:
        return iter(())


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
