"""Measurements as a table for a terminal, as Markdown and as JSON. What is not known reads NA, never 0."""

import json
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rich.table import Table

from bench.measure import Measured
from bench.workloads import Shape
from drumline.version import SOFTWARE_VERSION

NA: Final = "NA"
_LEGEND: Final = "* gateway / scheduler / executors"
NOISY_SHARE: Final = 0.05
"""Above this share of the machine used by others, a run should be repeated."""
Results = Mapping[Shape, Sequence[Measured]]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def _percent(share: float | None) -> str:
    return NA if share is None else f"{100 * share:.1f}"


def _by_service(values: Mapping[str, float] | None, *, scale: float) -> str:
    return NA if values is None else " / ".join(f"{value / scale:.{1 if scale == 1.0 else 0}f}" for value in values.values())


COLUMNS: Final[Mapping[str, Callable[[Measured], str]]] = {
    "tokens/s": lambda m: f"{m.tokens_per_s:.1f}",
    "TTFT p50 ms": lambda m: _ms(m.ttft_p50_s),
    "TTFT p95 ms": lambda m: _ms(m.ttft_p95_s),
    "ITL p50 ms": lambda m: _ms(m.itl_p50_s),
    "ITL p95 ms": lambda m: _ms(m.itl_p95_s),
    "CPU s *": lambda m: _by_service(m.cpu_s, scale=1.0),
    "RSS MiB *": lambda m: _by_service(m.rss_bytes, scale=2**20),
    "executor idle %": lambda m: _percent(m.idle_share),
    "client CPU %": lambda m: _percent(m.client_share),
    "others CPU %": lambda m: _percent(m.others_share if m.cpu_s is not None else None),
}


def typical(runs: Sequence[Measured]) -> Measured:
    """The run with the median throughput: one real run, not a mixture of several."""
    return sorted(runs, key=lambda run: run.tokens_per_s)[(len(runs) - 1) // 2]


def rows_of(results: Results) -> list[list[str]]:
    """One row a workload, its title first."""
    return [[shape.title, *(text(typical(runs)) for text in COLUMNS.values())] for shape, runs in results.items()]


def table_of(results: Results) -> Table:
    """For a terminal."""
    table = Table(
        title=f"drumline {SOFTWARE_VERSION} on {machine()}", caption=_LEGEND, title_justify="left", caption_justify="left"
    )
    table.add_column("workload")
    for name in COLUMNS:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows_of(results):
        table.add_row(*row)
    return table


def markdown_of(results: Results) -> str:
    """The same as Markdown."""
    lines = ["| workload | " + " | ".join(COLUMNS) + " |", "|---" + "|---:" * len(COLUMNS) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows_of(results)]
    return f"drumline {SOFTWARE_VERSION} on {machine()}\n\n" + "\n".join(lines) + f"\n\n{_LEGEND}\n"


def json_of(results: Results, *, seed: int, flags: Sequence[str]) -> str:
    """Every run, and the spread of the throughput."""
    workloads = {
        shape.name: {
            "title": shape.title,
            "tokens_per_s": {"median": statistics.median(rates), "min": min(rates), "max": max(rates)},
            "runs": [run.as_dict() for run in runs],
        }
        for shape, runs in results.items()
        for rates in [[run.tokens_per_s for run in runs]]
    }
    about = {"version": SOFTWARE_VERSION, "machine": machine(), "seed": seed, "serve_flags": list(flags)}
    return json.dumps({**about, "workloads": workloads}, indent=2) + "\n"


def warnings_of(results: Results) -> list[str]:
    """What makes these numbers doubtful."""
    noisy = [shape.name for shape, runs in results.items() if any(run.others_share > NOISY_SHARE for run in runs)]
    greedy = [shape.name for shape, runs in results.items() if any(run.client_share > 0.5 for run in runs)]
    return [
        *([f"other processes used more than {NOISY_SHARE:.0%} of the machine during {', '.join(noisy)}: repeat"] if noisy else []),
        *([f"the client used more than half a processor during {', '.join(greedy)}"] if greedy else []),
    ]


def machine() -> str:
    """The processor, for people."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{len(names)} x {names[0]}" if names else platform.machine()
