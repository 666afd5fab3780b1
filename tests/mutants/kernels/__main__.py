"""`python -m tests.mutants.kernels [FAMILY...]`: is each wrong CUDA kernel caught by its cases? See `make kernel-mutants`.

Every trial is a process of its own, for a wrong kernel may corrupt its memory or never end: both are caught. Status 0 when every
wrong one was caught and every harmless one passed; 1 when not; 2 for an unknown family.
"""

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kernels.cuda.source import flat_source
from kernels.emulator.build import DoesNotBuild
from kernels.emulator.device import EmulatedDevice, KernelFault
from kernels.emulator.traffic import excess
from kernels.proof.case import faults
from kernels.proof.catalogue import BOUNDS, STEMS
from kernels.proof.traffic import excesses, launch

FOLDER = Path(__file__).parent
LIMIT_S = 120
SEEDS = (0, 1, 7)
CAUGHT = 3


@dataclass(frozen=True)
class Planted:
    """One change of a source: `old`, where it first occurs, becomes `new`. A harmless one must pass."""

    family: str
    what: str
    old: str
    new: str
    harmless: bool = False

    def text(self, stem: str) -> str:
        """The source with the bug in it; as it is, where it has no such place."""
        return flat_source(stem).replace(self.old, self.new, 1)


def planted(family: str) -> list[Planted]:
    """Those of one family, in the order of its file."""
    return [Planted(family, **entry) for entry in tomllib.loads((FOLDER / f"{family}.toml").read_text())["mutant"]]


def what_catches(bug: Planted) -> str:
    """Runs the cases in this process, check mode first, for it stops before memory is corrupted; "" = nothing does."""
    devices = [EmulatedDevice(check=True, seed=2, source=bug.text), *(EmulatedDevice(seed=s, source=bug.text) for s in SEEDS)]
    for case in STEMS[bug.family]():
        for device in devices:
            arrays = case.arrays()
            try:
                case.launch(device, arrays)
            except (KernelFault, DoesNotBuild) as error:
                return f"{'check' if device.check else 'fast'} mode, {case.name}: {str(error).strip().splitlines()[-1]}"
            if wrong := faults(case, arrays):
                return f"{case.name}: {wrong[0]}"
    return wasteful(bug.family, bug.text)


def wasteful(family: str, source: Callable[[str], str]) -> str:
    """The first excess of what a family asks memory for; "" = none."""
    device = EmulatedDevice(profile=True, source=source)
    launch(BOUNDS[family], STEMS[family](), device)
    return next(iter(excesses(BOUNDS[family], excess(device.traffic))), "")


def trial(family: str, index: int) -> str:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "tests.mutants.kernels", "--one", family, str(index)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT_S} s"
    if done.returncode < 0:
        return f"died of signal {-done.returncode}"
    if done.returncode not in (0, CAUGHT):
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.kernels", description="Runs the cases against each wrong kernel."
    )
    parser.add_argument("family", nargs="*", help="only these (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="at the same time (default: %(default)s)")
    parser.add_argument("--one", nargs=2, metavar=("FAMILY", "INDEX"), help=argparse.SUPPRESS)
    told = parser.parse_args(argv)
    if told.one:
        caught = what_catches(planted(told.one[0])[int(told.one[1])])
        print(caught)
        return CAUGHT if caught else 0
    families = sorted(path.stem for path in FOLDER.glob("*.toml"))
    if unknown := set(told.family) - set(families):
        parser.error(f"no family {', '.join(sorted(unknown))}; known: {', '.join(families)}")
    return report([name for name in families if not told.family or name in told.family], jobs=max(1, told.jobs))


def report(families: Sequence[str], *, jobs: int) -> int:
    """Runs them and prints the table. Returns the exit status."""
    bugs = [(bug, index) for family in families for index, bug in enumerate(planted(family))]
    with ThreadPoolExecutor(jobs) as pool:
        caught = list(pool.map(lambda one: trial(one[0].family, one[1]), bugs))
    table = Table("family", "bug", "", "by")
    failed = 0
    for (bug, _), by in zip(bugs, caught, strict=True):
        good = bool(by) != bug.harmless
        failed += not good
        verdict = (
            ("passes, as it must" if bug.harmless else "CAUGHT")
            if good
            else ("HARMLESS, BUT CAUGHT" if bug.harmless else "SURVIVED")
        )
        table.add_row(bug.family, bug.what, verdict, by)
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False)
    console.print(table)
    console.print(f"{len(bugs) - failed} of {len(bugs)} as they should be")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
