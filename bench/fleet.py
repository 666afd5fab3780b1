"""`drumline bench fleet`: the executors that one scheduler keeps busy on this machine, and what limits their number.

The plan gap of a step is the time from the end of the step before it, by the exact clock of the device that is played, to the
moment its plan was in the executor's hands: 0 when it was there already, as with two plans in flight it should be. Idle is the sum
of the gaps over gaps and steps: sequences do not end, so a row can always run. A fake executor that gets no processor takes a plan
late, or sends a result late; both make gaps longer than the scheduler does: how late results were is printed beside them.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

import uvloop
from rich.console import Console
from rich.table import Table

from bench.client import BenchError
from bench.fleet_config import FleetSettings
from bench.fleet_run import Fleet, measure
from bench.report import NOISY_SHARE, machine
from drumline import settings
from drumline.version import SOFTWARE_VERSION
from launcher.door import wide_console

GOAL_IDLE_SHARE: Final = 0.02
GOAL_GAP_P99_MS: Final = 2.0
_FULL: Final = 0.9
"""Share of its time above which an event loop, or the machine, counts as full."""
COLUMNS: Final[dict[str, Callable[[Fleet], str]]] = {
    "executors": lambda one: str(one.executors),
    "steps/s": lambda one: f"{one.seen['num_steps'] / one.used.wall_s:.0f}",
    "tokens read %": lambda one: f"{100 * one.num_read / one.num_due:.1f}",
    "idle %": lambda one: f"{100 * one.seen['idle_share']:.2f}",
    "worst idle %": lambda one: f"{100 * one.seen['worst_idle_share']:.2f}",
    "gap p50 ms": lambda one: f"{one.seen['gap_p50_ms']:.2f}",
    "gap p99 ms": lambda one: f"{one.seen['gap_p99_ms']:.2f}",
    "result late p50 / p99 ms": lambda one: f"{one.seen['late_p50_ms']:.2f} / {one.seen['late_p99_ms']:.2f}",
    "CPU % scheduler / executors / reader": lambda one: " / ".join(
        f"{100 * usage.cpu:.0f}" for usage in one.used.by_process.values()
    ),
    "scheduler ms/step": lambda one: f"{scheduler_ms(one):.2f}",
    "machine busy %": lambda one: f"{100 * one.used.busy:.0f}",
    "others %": lambda one: f"{100 * one.used.others:.0f}",
    "holds": lambda one: "yes" if holds(one) else "no",
    "full": lambda one: limit_of(one),
}
"""CPU % is of one processor; machine and others are of all of them."""


def main(argv: list[str]) -> int:
    """0 = measured and printed; 1 = the fleet that was asked for could not be measured; 2 = wrong settings."""
    wanted = settings.load(FleetSettings, section="fleet", argv=argv)
    fleets: list[Fleet] = []
    errors = Console(stderr=True)

    def does_hold(executors: int) -> bool:
        try:
            fleets.append(uvloop.run(measure(wanted, executors=executors)))
        except BenchError as error:
            errors.print(f"drumline bench fleet: {executors} executors: {error}", style="yellow", markup=False, soft_wrap=True)
            return False
        errors.print(f"{executors} executors: {'within' if holds(fleets[-1]) else 'beyond'} the goals", highlight=False)
        return holds(fleets[-1])

    try:
        first = does_hold(wanted.executors)
        largest = (
            search(does_hold, asked=wanted.executors, asked_holds=first, most=wanted.most_executors) if wanted.search else None
        )
    except OSError as error:
        errors.print(f"drumline bench fleet: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    _print(wanted, fleets, largest)
    return 0 if any(one.executors == wanted.executors for one in fleets) else 1


def holds(fleet: Fleet) -> bool:
    """Whether a fleet is within both goals."""
    return fleet.seen["idle_share"] < GOAL_IDLE_SHARE and fleet.seen["gap_p99_ms"] < GOAL_GAP_P99_MS


def scheduler_ms(fleet: Fleet) -> float:
    """Processor time of the scheduler for each step, all its threads, ms."""
    return 1000 * fleet.used.by_process["scheduler"].cpu * fleet.used.wall_s / max(1, fleet.seen["num_steps"])


def limit_of(fleet: Fleet) -> str:
    """What had no time left: event loops that ran (not merely waited) all the time, the machine, or nothing."""
    full = [name for name, usage in fleet.used.by_process.items() if usage.loop > _FULL]
    if fleet.used.busy > _FULL:
        full.append("machine" if fleet.used.others < NOISY_SHARE else f"machine (others took {fleet.used.others:.0%} of it)")
    return ", ".join(full) or "nothing"


def search(does_hold: Callable[[int], bool], *, asked: int, asked_holds: bool, most: int) -> int:
    """The largest fleet that holds, to an eighth of it; 0 = none. Doubles while fleets hold, then halves what lies between."""
    good, bad = (asked, most + 1) if asked_holds else (0, asked)
    while bad == most + 1 and good < most:
        size = min(2 * good, most)
        good, bad = (size, bad) if does_hold(size) else (good, size)
    while bad - good > max(1, good // 8) and bad <= most:
        size = (good + bad) // 2
        good, bad = (size, bad) if does_hold(size) else (good, size)
    return good


def _print(wanted: FleetSettings, fleets: list[Fleet], largest: int | None) -> None:
    title = f"{wanted.rows} rows an executor, steps of {wanted.step_ms:g} ms ({machine()}, drumline {SOFTWARE_VERSION})"
    console = wide_console()
    console.print(table_of(fleets, title=title))
    if largest is not None:
        text = (
            f"largest fleet within idle under {GOAL_IDLE_SHARE:.0%} and p99 gap under {GOAL_GAP_P99_MS:g} ms: {largest} executors"
        )
        beyond = min((one for one in fleets if one.executors > largest), key=lambda one: one.executors, default=None)
        console.print(text if beyond is None else f"{text}; at {beyond.executors}, full: {limit_of(beyond)}", soft_wrap=True)
    if wanted.json_file:
        about = {"version": SOFTWARE_VERSION, "machine": machine(), "settings": wanted.model_dump(mode="json"), "largest": largest}
        text = json.dumps({**about, "fleets": [asdict(one) for one in fleets]}, indent=2) + "\n"
        wanted.json_file.write_text(text, encoding="utf-8")


def table_of(fleets: list[Fleet], *, title: str) -> Table:
    """A row for each fleet, smallest first."""
    table = Table(title=title, title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for one in sorted(fleets, key=lambda one: one.executors):
        table.add_row(*(cell(one) for cell in COLUMNS.values()))
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
