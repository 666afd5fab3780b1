"""A foreign `kernels` in front of ours ends an executor with one line that says what to do; decision 0021."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from tests.unit.house.test_rooms import ROOMS, ROOT


def start(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "executor_svc", "--port", "0"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_an_executor_that_finds_a_foreign_kernels_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("raise ImportError('never imported')\n")
    done = start(tmp_path)
    assert done.returncode == 1, done.stderr
    assert "is not Drumline's" in done.stderr
    assert "pip uninstall kernels" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_installed_distribution_has_a_top_level_name_of_ours() -> None:
    ours = {room.split("/")[-1] for room in ROOMS}
    theirs = {name: who for name, who in importlib.metadata.packages_distributions().items() if name in ours}
    assert {who for names in theirs.values() for who in names} <= {"drumline"}, theirs
