"""Draws how a step's cost grows with rows."""

from collections.abc import Mapping
from pathlib import Path


def draw(path: Path, points: Mapping[int, tuple[float, float, float]], *, goals: Mapping[int, float], title: str) -> None:
    """`points`: rows -> p10, p50 and p99, us. `goals`: rows -> most that p50 may be, us. Raises OSError."""
    from matplotlib.figure import Figure  # costs a second; only a picture needs it

    figure, rows = Figure(figsize=(7.5, 4.5), layout="constrained"), sorted(points)
    axes = figure.subplots()
    for column, name in enumerate(("p10", "p50", "p99")):
        axes.plot(rows, [points[one][column] for one in rows], "o-", label=name)
    axes.plot(sorted(goals), [goals[one] for one in sorted(goals)], "kv", label="goal for p50")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(rows, labels=[str(one) for one in rows])
    axes.set(xlabel="rows", ylabel="scheduler CPU a step, us")
    axes.legend()
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=120)
