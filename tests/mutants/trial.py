"""Puts mutants to the test, each in a copy of the tree: the tree that people work in is read, never written.

A trial is one pytest process over the few tests that should catch the mutant. Only a test that fails counts: code that cannot be
imported, a fixture that breaks or a process that hangs proves nothing, and neither does any verdict when the unpatched tests fail.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from tests.mutants.table import Mutant

LIMIT_S: Final = 180
"""A trial takes seconds; this ends one that hangs."""
PLUGINS: Final = ("pytest_asyncio.plugin", "pytest_timeout", "_hypothesis_pytestplugin")
"""What the settings in pyproject.toml name; the others cost a second of every start. `ci`: no deadline, no chance."""
PYTEST: Final = (
    *(sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-rf", "-p", "no:cacheprovider"),
    *(part for plugin in PLUGINS for part in ("-p", plugin)),
    "--hypothesis-profile=ci",
)


class Verdict(StrEnum):
    """What became of a mutant; all but CAUGHT are failures."""

    CAUGHT = "CAUGHT"
    SURVIVED = "SURVIVED"
    NOT_APPLIED = "NOT APPLIED"
    BROKEN = "BROKEN"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict with its evidence: the test that failed and how, or why there is none."""

    verdict: Verdict
    evidence: str = ""


def snapshot(root: Path, into: Path) -> None:
    """Copies a tree without what is hidden or compiled: an edit in the middle of a run changes nothing."""
    shutil.copytree(root, into, ignore=shutil.ignore_patterns(".*", "__pycache__"))


def control(clean: Path, mutants: Iterable[Mutant]) -> Outcome:
    """SURVIVED when all the tests together pass on the unpatched tree, as they must. Leaves its modules compiled."""
    return _run(clean, sorted({test for mutant in mutants for test in mutant.tests}))


def trial(mutant: Mutant, clean: Path, *, tree: Path) -> Outcome:
    """One mutant at `tree`, a copy of `clean` that nobody else uses meanwhile and that equals it again afterwards."""
    if why := mutant.apply(tree):
        return Outcome(Verdict.NOT_APPLIED, why)
    try:
        # Compiled modules are told apart by whole seconds and size, which the wrong version may share.
        Path(cache_from_source(str(tree / mutant.file))).unlink(missing_ok=True)
        return _run(tree, mutant.tests, PYTHONDONTWRITEBYTECODE="1")
    finally:
        shutil.copy2(clean / mutant.file, tree / mutant.file)


def _run(tree: Path, tests: Sequence[str], **more: str) -> Outcome:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200", "OMP_NUM_THREADS": "1", **more}
    try:
        done = subprocess.run([*PYTEST, *tests], cwd=tree, env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Outcome(Verdict.BROKEN, f"not done after {LIMIT_S} s")
    lines = (done.stdout + done.stderr).splitlines()
    if done.returncode == 0:
        return Outcome(Verdict.SURVIVED)
    failed = next((line.removeprefix("FAILED ") for line in lines if line.startswith("FAILED ")), "")
    if done.returncode == 1 and failed:
        return Outcome(Verdict.CAUGHT, failed)
    said = [line for line in lines if line.startswith(("E ", "ERROR"))] or lines[-1:]
    return Outcome(Verdict.BROKEN, f"pytest ended with {done.returncode}: {' '.join(said[:2])}")
