"""`drumline bench start` over a server without a model: every figure is there and in order."""

import json
import os
from pathlib import Path

import pytest

from bench import start


def test_every_start_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "200")
    told = tmp_path / "start.json"
    assert start.main(["--repetitions", "1", "--json-file", str(told), "--", "--backend", "fake"]) == 0
    (one,) = json.loads(told.read_text())
    assert 0 < one["ready_s"] < one["first_token_s"] < 60
    assert set(one["cpu_s"]) == {"launcher", "executor", "scheduler", "gateway"}
    assert all(0 < value < 60 for value in one["cpu_s"].values())
    printed = capsys.readouterr().out
    assert "median" in printed
    assert f"{one['first_token_s']:.2f}" in printed


def test_a_server_that_does_not_start_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert start.main(["--repetitions", "1", "--", "--model", "/nowhere"]) == 1
    assert "ended before it was ready" in capsys.readouterr().err
