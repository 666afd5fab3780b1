"""The flagship: a session of the real model is recorded, and replays on a fresh executor with no difference."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.served import ROOT, Recorded


def drumline(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launcher", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=240, env=None
    )


@pytest.fixture
def recording(recorded: Recorded) -> Path:
    return recorded.folder


def test_replay_on_a_fresh_executor_has_no_difference(recording: Path) -> None:
    done = drumline("replay", str(recording))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differences" in done.stdout


def test_replay_against_a_fresh_scheduler_is_byte_identical(recording: Path) -> None:
    done = drumline("replay", str(recording), "--against", "scheduler")
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_flipped_byte_is_refused(recording: Path, tmp_path: Path) -> None:
    [segment] = sorted(recording.glob("*.trace"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / segment.name).write_bytes(data)
    done = drumline("replay", str(tmp_path / segment.name))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_b093_cut_off_in_mid_write_reads_to_its_last_whole_frame(recording: Path, tmp_path: Path) -> None:
    [segment] = sorted(recording.glob("*.trace"))
    data = segment.read_bytes()
    (tmp_path / segment.name).write_bytes(data[: len(data) * 2 // 3])
    done = drumline("replay", str(tmp_path / segment.name))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differences" in done.stdout
