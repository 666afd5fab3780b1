"""`drumline bench step`: what one step costs the scheduler, wire and delivery included, against the number of rows."""

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

from bench.children import running
from bench.client import BenchError
from bench.echo import PROMPT_LENGTHS
from bench.reader import greeted
from bench.report import machine
from bench.step_config import StepSettings
from bench.step_plot import draw
from bench.step_scheduler import WARM_UP
from drumline import settings
from drumline.version import SOFTWARE_VERSION
from launcher.door import progress_bar, wide_console

GOALS_US: Final = {256: 500, 4096: 2000}
"""Rows -> processor time that the median step may cost at most, us."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Of one number of rows, us. `p10` is an undisturbed step.

    Attributes:
        wall_p50_us: from result to result.
    """

    rows: int
    num_steps: int
    cpu_p10_us: float
    cpu_p50_us: float
    cpu_p99_us: float
    cpu_mean_us: float
    wall_p50_us: float
    messages_per_step: float


def main(argv: list[str]) -> int:
    """0 = measured and printed; 1 = a process failed; 2 = wrong settings."""
    wanted = settings.load(StepSettings, section="step", argv=argv)
    costs: list[StepCost] = []
    try:
        with progress_bar(len(wanted.rows), "steps") as progress:
            for rows in wanted.rows:
                costs.append(uvloop.run(measure(rows, steps=wanted.steps, step_ms=wanted.step_ms)))
                progress(len(costs))
    except (BenchError, OSError) as error:
        Console(stderr=True).print(f"drumline bench step: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    title = f"scheduler CPU a step ({machine()}, drumline {SOFTWARE_VERSION}, steps of {wanted.step_ms:g} ms)"
    wide_console().print(table_of(costs, title=title))
    if wanted.json_file:
        about = {"version": SOFTWARE_VERSION, "machine": machine(), "settings": wanted.model_dump(mode="json")}
        text = json.dumps({**about, "costs": [asdict(cost) for cost in costs]}, indent=2) + "\n"
        wanted.json_file.write_text(text, encoding="utf-8")
    if wanted.plot:
        points = {cost.rows: (cost.cpu_p10_us, cost.cpu_p50_us, cost.cpu_p99_us) for cost in costs}
        draw(wanted.plot, points, goals=GOALS_US, title=title)
    return 0


async def measure(rows: int, *, steps: int, step_ms: float) -> StepCost:
    """Runs all three processes for so many steps. Raises BenchError."""
    most_tokens = 2 * steps + 1000  # no sequence reaches it: those admitted first run ahead of the last
    length = most_tokens + 2 * PROMPT_LENGTHS
    told = ("--rows", str(rows), "--step-ms", str(step_ms), "--max-model-len", str(length))
    async with running("bench.echo_process", *told) as executor:
        address = await executor.line()
        async with running("bench.step_scheduler", address, str(rows)) as scheduler:
            port = int(await scheduler.line())
            async with greeted(port, executors=1, num_rows=rows, max_tokens=most_tokens) as reader:
                await reader.submit()
                while reader.num_tokens < rows * steps:
                    await reader.read()
            return cost_of(rows, steps=steps, told=await scheduler.answer("end"), num_messages=reader.num_messages)


def cost_of(rows: int, *, steps: int, told: Any, num_messages: int) -> StepCost:
    """The figures, from what the scheduler noted. Raises BenchError if no step was steady."""
    marks = np.array(told["marks"][: steps - WARM_UP])
    if len(marks) < 2:
        raise BenchError(f"none of {steps} steps of {rows} rows was steady: give it more --steps")
    cpu_us, wall_us = np.diff(marks, axis=0).T / 1e3
    p10, p50, p99 = np.percentile(cpu_us, [10, 50, 99])
    return StepCost(
        rows=rows,
        num_steps=len(cpu_us),
        cpu_p10_us=float(p10),
        cpu_p50_us=float(p50),
        cpu_p99_us=float(p99),
        cpu_mean_us=float(cpu_us.mean()),
        wall_p50_us=float(np.median(wall_us)),
        messages_per_step=num_messages / steps,
    )


def table_of(costs: list[StepCost], *, title: str) -> Table:
    """One row for each number of rows."""
    table = Table(title=title, title_justify="left")
    for name in (
        "rows",
        "p10 us",
        "p50 us",
        "p99 us",
        "mean us",
        "wall p50 us",
        "steps",
        "goal",
    ):
        table.add_column(name, justify="right")
    for cost in costs:
        micros = (cost.cpu_p10_us, cost.cpu_p50_us, cost.cpu_p99_us, cost.cpu_mean_us, cost.wall_p50_us)
        table.add_row(str(cost.rows), *(f"{value:.0f}" for value in micros), str(cost.num_steps), goal_text(cost))
    return table


def goal_text(cost: StepCost) -> str:
    """Whether the median is within the goal for so many rows; empty where there is none."""
    goal_us = GOALS_US.get(cost.rows)
    return "" if goal_us is None else f"p50 under {goal_us}: {'yes' if cost.cpu_p50_us < goal_us else 'no'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
