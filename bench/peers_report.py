"""The comparison with peers as tables, Markdown and JSON. What is not known reads NA."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.table import Table

from bench.client import BenchError
from bench.peers_results import DRUMLINE, TOLERANCE, Results, Run, Standing, cpu_s, memory, typical
from bench.price_figures import spread_of
from bench.report import NA, machine
from bench.workloads import Shape
from drumline.version import SOFTWARE_VERSION

BEGIN: Final = "<!-- bench peers: what stands between the marks is written by `drumline bench peers --markdown-file` -->"
END: Final = "<!-- bench peers: end -->"
COLUMNS: Final = (
    *("workload", "server", "tokens/s", "Drumline / it", "TTFT p50 / p95 ms", "ITL p50 / p95 ms"),
    *("RSS MiB", "CPU s server / client", "others %", "peak rows / preempted"),
)
QUALITY: Final = ("server", "weights", "perplexity", "over float32", "counts")


def rows_of(results: Results, shapes: Sequence[Shape]) -> list[list[str]]:
    """A row for each workload and server: the median of tokens/s (least .. most), the rest from the run that has it."""
    rows = []
    for shape in shapes:
        best = results.best_peer(shape.name)
        for server in results.standings.values():
            runs = results.of(server.name, shape.name)
            label = f"{server.name}{' (in-process)' if server.in_process else ''}{' *' if server.name == best else ''}"
            rows.append([shape.name, label, *(_cells(results, runs, shape) if runs else [NA] * (len(COLUMNS) - 2))])
    return rows


def _cells(results: Results, runs: Sequence[Run], shape: Shape) -> list[str]:
    one = typical(runs)
    seen, resident = one.measured, memory(one.measured.rss_bytes)
    rate = spread_of([run.measured.tokens_per_s for run in runs])
    ratio = results.ratio(one.server, shape.name)
    server_s = cpu_s(seen)
    return [
        NA if rate is None else rate.text(1),
        "" if one.server == DRUMLINE else NA if ratio is None else ratio.text(2),
        f"{1e3 * seen.ttft_p50_s:.0f} / {1e3 * seen.ttft_p95_s:.0f}",
        f"{1e3 * seen.itl_p50_s:.1f} / {1e3 * seen.itl_p95_s:.1f}",
        NA if resident is None else str(resident >> 20),
        f"{NA if server_s is None else f'{server_s:.1f}'} / {seen.client_share * seen.wall_s:.1f}",
        f"{100 * max(run.measured.others_share for run in runs):.0f}",
        "" if one.peak_rows is None else f"{max(run.peak_rows or 0 for run in runs)} / {sum(run.preemptions or 0 for run in runs)}",
    ]


def quality_rows(results: Results) -> list[list[str]]:
    """Perplexity of each server, and whether it can be the best peer."""
    return [_quality(results, one) for one in results.standings.values()]


def _quality(results: Results, one: Standing) -> list[str]:
    over = results.over_reference(one.name)
    told = NA if one.perplexity is None else f"{one.perplexity:.3f}"
    counts = "" if one.name == DRUMLINE else "yes" if results.counts(one.name) else f"no: more than {TOLERANCE:.0%} off"
    if one.perplexity is None and one.reason:
        told = f"{NA}: {one.reason}"
    return [one.name, one.weights, told, NA if over is None else f"{100 * (over - 1):+.2f} %", counts]


def notes_of(results: Results, shapes: Sequence[Shape]) -> list[str]:
    """The ratios that count, and all that makes figures doubtful or is missing."""
    notes = []
    for shape in shapes:
        best = results.best_peer(shape.name)
        ratio = best and results.ratio(best, shape.name)
        if best and ratio:
            notes.append(f"{shape.name} ({shape.title}): {ratio.text(2)} times the best peer, {best}")
    for (server, workload), why in results.failures.items():
        notes.append(f"{server}: no more figures{f' of {workload}' if workload else ''}: {why}")
    if noisy := sorted({f"{run.workload} {run.server}" for run in results.runs if run.noisy}):
        notes.append(f"others used more than a few per cent of the machine, repeated in vain: {', '.join(noisy)}")
    return notes


def tables_of(results: Results, shapes: Sequence[Shape]) -> list[Table]:
    """For a terminal."""
    return [_table(title_of(), COLUMNS, rows_of(results, shapes)), _table("Perplexity", QUALITY, quality_rows(results))]


def title_of() -> str:
    """What was compared where."""
    return f"drumline {SOFTWARE_VERSION} beside its peers on {machine()} (* = best peer)"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in ("workload", "server", "weights", "counts") else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def markdown_of(results: Results, shapes: Sequence[Shape]) -> str:
    """The same as Markdown."""
    parts = [title_of(), _markdown(COLUMNS, rows_of(results, shapes)), _markdown(QUALITY, quality_rows(results))]
    return "\n\n".join([*parts, "\n".join(f"* {note}" for note in notes_of(results, shapes))]) + "\n"


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines)


def placed(markdown: str, file: Path) -> str:
    """The file's new text: marks and all, or what stood between its marks replaced. Raises BenchError when it lacks them."""
    if not file.exists():
        return f"{BEGIN}\n\n{markdown}\n{END}\n"
    text = file.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or END not in text.split(BEGIN, 1)[1]:
        raise BenchError(f"{file} exists and lacks the marks: put these two lines where the tables belong: {BEGIN} {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{markdown}\n{END}{rest.split(END, 1)[1]}"


def json_of(results: Results, *, settings: dict[str, object], flags: Sequence[str]) -> str:
    """Every run."""
    told = {
        "version": SOFTWARE_VERSION,
        "machine": machine(),
        "settings": settings,
        "serve_flags": list(flags),
        "reference_perplexity": results.reference,
        "servers": [asdict(one) for one in results.standings.values()],
        "failures": [{"server": server, "workload": name, "why": why} for (server, name), why in results.failures.items()],
        "runs": [asdict(run) for run in results.runs],
    }
    return json.dumps(told, indent=2) + "\n"
