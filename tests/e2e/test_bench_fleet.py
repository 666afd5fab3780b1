"""`drumline bench step` and `drumline bench fleet` with their real processes: small, short, and what they count adds up."""

import json
import subprocess
import sys
from pathlib import Path


def test_a_small_fleet_is_measured(tmp_path: Path) -> None:
    told = tmp_path / "fleet.json"
    flags = ("--executors", "2", "--rows", "4", "--warm-up-s", "0.2", "--window-s", "1", "--no-search", "--json-file", str(told))
    ran = subprocess.run([sys.executable, "-m", "bench", "fleet", *flags], capture_output=True, text=True, timeout=90, check=False)
    assert ran.returncode == 0, ran.stderr
    (fleet,) = json.loads(told.read_text())["fleets"]
    steps, wall_s = fleet["seen"]["num_steps"], fleet["used"]["wall_s"]
    assert 4 < steps <= 2 * (wall_s / 0.020) * 1.5  # a machine under load may be far behind its clock, but never far ahead
    assert fleet["seen"]["num_tokens"] == 4 * steps
    assert fleet["num_read"] > 0
    assert 0 <= fleet["seen"]["idle_share"] <= 1
    assert set(fleet["used"]["by_process"]) == {"scheduler", "executors", "reader"}
    assert fleet["used"]["by_process"]["scheduler"]["cpu"] > 0
    assert "gap p99 ms" in ran.stdout


def test_the_step_is_measured_and_its_growth_drawn(tmp_path: Path) -> None:
    told, picture = tmp_path / "step.json", tmp_path / "step.png"
    flags = ("--rows", "4", "--rows", "8", "--steps", "250", "--json-file", str(told), "--plot", str(picture))
    ran = subprocess.run([sys.executable, "-m", "bench", "step", *flags], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    costs = json.loads(told.read_text())["costs"]
    assert [cost["rows"] for cost in costs] == [4, 8]
    assert all(0 < cost["cpu_p50_us"] <= cost["cpu_p99_us"] for cost in costs)
    assert picture.read_bytes().startswith(b"\x89PNG")
