"""Draws the curve: rates of the four arms, and the one number, against the number of workers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.curve_cells import ARMS
from bench.curve_row import Row
from bench.curve_verdict import Rates, known


def draw(path: Path, rows: Sequence[Row], *, title: str) -> None:
    """Writes a PNG. Cells without a figure leave a gap. Raises OSError."""
    from matplotlib.figure import Figure  # costs a second; only a picture needs it

    figure, rates = Figure(figsize=(11, 4.5), layout="constrained"), Rates(rows)
    left, right = figure.subplots(1, 2)
    for arm in ARMS:
        points = {row.cell.batch: value for row in rows if row.cell.arm is arm and (value := row.get("tok_s")) is not None}
        _line(left, points, label=f"{arm.letter}: {arm.admission}, {arm.lengths}", style="--" if arm.mixed else "-")
    for label, pair in (("bucketed, B/A", ("B", "A")), ("ragged, D/C", ("D", "C"))):
        _line(right, known(rates.curve(*pair)), label=label, style="-")
    right.axhline(1.0, color="grey", linewidth=0.8)
    left.set(xlabel="workers", ylabel="output tokens/s", title="throughput", ylim=(0, None))
    right.set(xlabel="workers", ylabel="mixed / uniform", title="the one number", ylim=(0, None))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlim(rates.batches[0] / 1.5, rates.batches[-1] * 1.5)
        axes.set_xticks(rates.batches, labels=[str(batch) for batch in rates.batches])
        axes.legend()
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=120)


def _line(axes: Any, points: Mapping[int, float], *, label: str, style: str) -> None:
    axes.plot(sorted(points), [points[batch] for batch in sorted(points)], f"o{style}", label=label)
