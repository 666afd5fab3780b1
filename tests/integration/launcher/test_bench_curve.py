"""`drumline bench curve --smoke` as a user runs it: two cells, each with a gateway, scheduler and (fake) executor of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 240.0


def until(status: Path, word: str, process: "subprocess.Popen[str]") -> None:
    """The status file is readable while the run goes on."""
    deadline = time.monotonic() + PATIENCE_S
    while not (status.exists() and word in status.read_text()):
        assert process.poll() is None, "it ended early"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_e19_smoke_measures_two_cells_with_fresh_services_and_outlives_its_terminal(tmp_path: Path) -> None:
    """Rows E2, E3, E6, E15 and E19."""
    out, status = tmp_path / "curve", tmp_path / "status"
    command = [sys.executable, "-m", "launcher", "bench", "curve", "--smoke", "--backend", "fake", "--out", str(out)]
    environ = os.environ | {"DRUMLINE_CURVE_STATUS_FILE": str(status)}
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(status, "B-3 services are up", process)
        services = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGHUP)
        until(status, "D-3 services are up", process)
        assert not [one for one in services if one.is_running()], "a cell's services end with it"
        services = psutil.Process(process.pid).children(recursive=True)
        said, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors + status.read_text()
    assert not [one for one in services if one.is_running()]
    assert status.read_text().splitlines()[-1].endswith("DONE 2 of 2 cells, 0 without a rate")
    told = json.loads((out / "results.json").read_text())
    assert [(row["arm"], row["admission"], row["grant"].partition(":")[0]) for row in told["rows"]] == [
        ("B", "bucketed", "refused"),
        ("D", "ragged", "granted"),
    ]
    for row in told["rows"]:
        assert row["provenance"].startswith("sim, fake, drumline-fake")
        assert row["tok_s"] > 0
        assert row["requests"] >= 3
        assert 1 <= row["decode_rows"] <= 3
        assert row["why_na"] == {}
    assert "tok_s(D)/tok_s(B) at 3 workers: " in said
    assert len((out / "results.tsv").read_text().splitlines()) == 3
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert not list(out.rglob("*.trace")), "recordings are read and removed"
