"""Draws the law: the effective batch against the number of lengths, and rows step by step on both sides of the boundary."""

from pathlib import Path
from typing import Any

from scheduler_svc.law import tables
from scheduler_svc.law.render import PROVENANCE

SIZES = (32, 128)
SIDES = (5, 6)


def draw(path: Path) -> None:
    """Writes a picture; the kind follows from the name's ending. Raises ModuleNotFoundError without matplotlib, and OSError."""
    from matplotlib.figure import Figure  # costs a second; only a picture needs it

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _shattering(left)
    _boundary(right)
    figure.suptitle(f"Bucket shattering law ({PROVENANCE}: the real scheduler core, a virtual clock, no device)")
    figure.savefig(path, dpi=120)


def _shattering(axes: Any) -> None:
    for size in SIZES:
        counts = [2**power for power in range(size.bit_length())]
        cells = tables.law([(size, count) for count in counts])
        axes.plot(counts, [case.granted.last_rows for case in cells], "o-", label=f"{size} admitted, granted")
        axes.plot(counts, [case.refused.last_rows for case in cells], "s--", label=f"{size} admitted, refused")
    axes.set(xscale="log", yscale="log", xlabel="cache lengths D", ylabel="rows that run per step", title="effective batch")
    axes.legend()


def _boundary(axes: Any) -> None:
    num_steps = (max(SIDES) - 1) * tables.GAP
    for count in SIDES:
        rows = tables.trace(count, num_steps=num_steps)
        axes.step(range(num_steps), [ran / (count * tables.ROWS_PER_LENGTH) for ran in rows], label=f"{count} lengths")
    axes.set(xlabel="step", ylabel="share of the admitted that run", title=f"{tables.GAP} tokens apart: 5 lengths merge, 6 do not")
    axes.legend()
