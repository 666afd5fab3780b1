"""`python -m tests.mutants [ID...]`: is each wrong version of the code caught by a test? `make mutants` runs them all.

Status 0 when every mutant was caught; 1 when one was not, did not apply or broke, or when a test fails on the code as it is;
2 for an unknown id.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import Queue

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tests.mutants.table import TABLE, Mutant, load
from tests.mutants.trial import Outcome, Verdict, control, snapshot, trial

ROOT = Path(__file__).resolve().parents[2]
PIPE_WIDTH = 200


def main(argv: Sequence[str] | None = None, *, root: Path = ROOT, table: Path = TABLE) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Runs the tests against each mutant.")
    parser.add_argument("id", nargs="*", type=int, help="only these (default: all)")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="at the same time (default: %(default)s)")
    told = parser.parse_args(argv)
    mutants = load(table)
    if unknown := set(told.id) - {mutant.id for mutant in mutants}:
        parser.error(f"no mutant {', '.join(map(str, sorted(unknown)))}")
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    return report([one for one in mutants if not told.id or one.id in told.id], console, root=root, jobs=max(1, told.jobs))


def report(mutants: list[Mutant], console: Console, *, root: Path, jobs: int) -> int:
    """Runs them, says what became of each as it ends and all of it in a table. Returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        clean = Path(scratch, "clean")
        snapshot(root, clean)
        outcomes = dict[int, Outcome]()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("control", total=len(mutants))
            before = control(clean, mutants)
            if before.verdict is not Verdict.SURVIVED:
                console.print(f"control: the tests fail on the code as it is, which says nothing of mutants: {before.evidence}")
                return 1
            console.print("control: the tests pass on the code as it is")
            progress.update(task, description="mutants")
            for mutant, outcome in _outcomes(mutants, clean, jobs=jobs):
                outcomes[mutant.id] = outcome
                console.print(Text.assemble(_verdict(outcome), f"{' ' * (12 - len(outcome.verdict))}{mutant.id:>2}  {mutant.what}"))
                progress.advance(task)
    console.print(table_of(mutants, outcomes))
    num_caught = sum(outcome.verdict is Verdict.CAUGHT for outcome in outcomes.values())
    console.print(f"{num_caught}/{len(mutants)} CAUGHT", style="green" if num_caught == len(mutants) else "red")
    return status(outcomes.values())


def status(outcomes: Iterable[Outcome]) -> int:
    """0 when there are any and all were caught."""
    verdicts = {outcome.verdict for outcome in outcomes}
    return 0 if verdicts == {Verdict.CAUGHT} else 1


def table_of(mutants: list[Mutant], outcomes: dict[int, Outcome]) -> Table:
    """One row each. `*`: upstream's tests missed it at first."""
    table = Table("#", "mutant", "file", "verdict", title="Mutants (* missed by upstream's first run)", title_justify="left")
    table.add_column("evidence", overflow="fold")
    for mutant in mutants:
        outcome = outcomes[mutant.id]
        what = f"{mutant.what} ({mutant.note})" if mutant.note else mutant.what
        evidence = outcome.evidence
        if outcome.verdict is Verdict.CAUGHT:
            evidence = evidence.partition(" - ")[0].partition("::")[2]
        star = "*" if mutant.fixture else ""
        table.add_row(f"{mutant.id}{star}", Text(what), mutant.file, _verdict(outcome), Text(evidence))
    return table


def _outcomes(mutants: list[Mutant], clean: Path, *, jobs: int) -> Iterator[tuple[Mutant, Outcome]]:
    """As they end, so not in order."""
    trees = Queue[Path](jobs)
    for number in range(jobs):
        trees.put(shutil.copytree(clean, clean.with_name(f"tree-{number}")))

    def run(mutant: Mutant) -> Outcome:
        tree = trees.get()
        try:
            return trial(mutant, clean, tree=tree)
        finally:
            trees.put(tree)

    pool = ThreadPoolExecutor(jobs)
    try:
        running = {pool.submit(run, mutant): mutant for mutant in mutants}
        for done in as_completed(running):
            yield running[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _verdict(outcome: Outcome) -> Text:
    return Text(outcome.verdict, style="green" if outcome.verdict is Verdict.CAUGHT else "bold red")


if __name__ == "__main__":
    sys.exit(main())
