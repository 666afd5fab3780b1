"""A run from preflight to DONE, with cells that are made up: what is written when, how it ends. Rows E2 to E4, E15 of domain.md."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import curve, curve_preflight
from bench.curve_cells import ARMS, Cell
from bench.curve_config import CurveSettings
from bench.curve_preflight import PreflightRefused, fits_of, preflight
from bench.curve_row import COLUMNS, Row
from bench.curve_status import StatusFile
from bench.memory import FAKE, HEADROOM, Geometry, MemoryUnknown, geometry_of, need_of, num_blocks

SMALL = Geometry(token_bytes=46080, weight_bytes=540 << 20, row_copies=60, max_position=8192)
ROOT = Path(__file__).resolve().parents[3]
RESULTS = ("results.tsv", "results.json", "summary.txt", "curve.png")


async def made_up(cell: Cell, wanted, *, words, say) -> Row:
    say(f"{cell.name} services are up")
    return Row(cell, {"tok_s": 10.0 * cell.batch}, {"running": "made up"}, grant="granted", provenance="sim, made up")


def run(out: Path, *argv: str) -> tuple[int, list[str]]:
    status = curve.main(["--backend", "fake", "--out", str(out), *argv])
    return status, (out / "status").read_text().splitlines()


def test_a_run_leaves_all_its_files(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(curve, "measure_cell", made_up)
    status, lines = run(tmp_path)
    assert status == 0
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines)
    assert sum("preflight" in line and line.endswith("fits") for line in lines) == 20
    assert lines[-1].endswith("DONE 20 of 20 cells, 0 without a rate")
    table = (tmp_path / "results.tsv").read_text().splitlines()
    assert table[0].split("\t") == list(COLUMNS)
    assert len(table) == 21
    assert all((tmp_path / name).stat().st_size for name in RESULTS)
    assert "flat, hypothesis dead" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--preflight", "false"], "preflight failed: 'false' ended with status 1"),
        (["--preflight", "no-such-check-of-a-machine"], "preflight missing: there is no 'no-such-check-of-a-machine'"),
        (["--batch", "300"], "preflight does not fit: max_num_seqs is 256"),
        (["--backend", "cpu", "--model", "no/such/model"], "preflight failed: the model's configuration cannot be read"),
    ],
)
def test_e4_a_preflight_that_fails_or_is_missing_measures_nothing(argv, word, tmp_path, monkeypatch, capsys) -> None:
    """Exit 2, the status says which, and there are no rows: not even those of the run before."""
    monkeypatch.setattr(curve, "measure_cell", made_up)
    (tmp_path / "results.tsv").write_text("of an earlier run")
    status, lines = run(tmp_path, *argv)
    assert status == 2
    assert f"DONE refused: {word}" in lines[-1]
    assert not any((tmp_path / name).exists() for name in RESULTS)
    assert "nothing was measured" in capsys.readouterr().err


def test_e4_cells_that_do_not_fit_refuse_the_whole_curve(monkeypatch) -> None:
    monkeypatch.setattr(curve_preflight, "geometry_of", lambda *_, **__: SMALL)
    monkeypatch.setattr(curve_preflight, "available_bytes", lambda: 8 << 30)
    said: list[str] = []
    with pytest.raises(PreflightRefused, match=r"does not fit: \d+ of 20 cells, first [BD]-128") as refusal:
        preflight(CurveSettings(), said.append)
    assert refusal.value.word == "does not fit"
    assert len(said) == 20


def test_e4_memory_that_nobody_knows_is_a_refusal_too(monkeypatch) -> None:
    def unknown() -> int:
        raise MemoryUnknown("the system does not say")

    monkeypatch.setattr(curve_preflight, "geometry_of", lambda *_, **__: FAKE)
    monkeypatch.setattr(curve_preflight, "available_bytes", unknown)
    with pytest.raises(PreflightRefused, match="preflight failed: the system does not say"):
        preflight(CurveSettings(), print)
    monkeypatch.setattr(curve_preflight, "find_spec", lambda name: None)
    with pytest.raises(PreflightRefused, match="preflight missing: matplotlib"):
        preflight(CurveSettings(), print)


def test_mixed_cells_need_more_memory_than_uniform_ones() -> None:
    needs = {fit.cell: fit.need.total for fit in fits_of(CurveSettings(), SMALL, available=1 << 40)}
    a, b = ARMS[0], ARMS[1]
    assert needs[Cell(a, 128)] < needs[Cell(b, 128)]
    assert needs[Cell(b, 1)] < needs[Cell(b, 128)]


def test_memory_is_that_of_the_shipped_model_and_of_the_cohort_that_it_will_make() -> None:
    from executor_svc.layouts.cohort import GROWTH, TILE, KvShape

    model = geometry_of("", backend="cpu")
    assert (model.token_bytes, model.row_copies) == (2 * 4 * 30 * 3 * 64, 60)
    assert model.weight_bytes == pytest.approx(4 * 134.5e6, rel=0.01)
    assert GROWTH + 2 * TILE + TILE <= HEADROOM
    shape = KvShape(num_layers=30, num_kv_heads=3, head_dim=64, max_bytes=num_blocks(8, longest=300) * 16 * model.token_bytes)
    columns = -(-(300 + 1 + GROWTH) // TILE) * TILE + TILE
    assert shape.cohort_bytes(8, columns) <= shape.max_bytes, "else the executor would refuse the cohort"
    assert need_of(model, num_rows=8, longest=300, dense=True).cohorts >= 3 * shape.cohort_bytes(8, columns)


def test_e3_a_cell_that_fails_is_na_and_the_others_go_on(tmp_path, monkeypatch, capsys) -> None:
    async def one_fails(cell: Cell, wanted, *, words, say) -> Row:
        return (
            Row(cell, reasons={"": "drumline serve ended before it was ready"})
            if cell.batch == 8
            else await made_up(cell, wanted, words=words, say=say)
        )

    monkeypatch.setattr(curve, "measure_cell", one_fails)
    monkeypatch.setattr(curve, "draw", lambda *_, **__: None)
    status, lines = run(tmp_path)
    assert status == 1
    assert lines[-1].endswith("DONE 20 of 20 cells, 4 without a rate")
    assert sum("NA: drumline serve ended" in line for line in lines) == 4
    assert "cells without a rate: B-8, C-8, D-8, A-8" in capsys.readouterr().out


def test_e3_a_signal_ends_the_run_in_order_and_keeps_what_was_measured(tmp_path, monkeypatch) -> None:
    async def signalled(cell: Cell, wanted, *, words, say) -> Row:
        if cell.arm.letter == "C":
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            await curve.asyncio.sleep(60)
        return await made_up(cell, wanted, words=words, say=say)

    monkeypatch.setattr(curve, "measure_cell", signalled)
    monkeypatch.setattr(curve, "draw", lambda *_, **__: None)
    status, lines = run(tmp_path)
    assert status == 1
    assert lines[-1].endswith("DONE interrupted: 2 of 20 cells, 0 without a rate")
    assert len((tmp_path / "results.tsv").read_text().splitlines()) == 3


def test_e3_the_status_is_truncated_and_its_last_line_says_done_whatever_happens(tmp_path) -> None:
    path = tmp_path / "deep" / "status"
    for _ in range(2):
        with contextlib.suppress(RuntimeError), StatusFile(path) as status:
            status.say("one\nevent")
            assert path.read_text().endswith("Z one event\n"), "readable at once"
            raise RuntimeError("by chance")
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    assert lines[-1].endswith("DONE ended by RuntimeError: by chance")


HANGS_UP = """
import os, signal, time
from bench.curve_hangup import surviving_hangup
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests under nohup hands down that it is ignored
with surviving_hangup():
    os.write(1, b"ready")
    while os.fstat(1).st_rdev != os.stat(os.devnull).st_rdev:
        time.sleep(0.01)
    raise SystemExit(os.write(1, b"nothing"))
"""


def test_e2_a_terminal_that_hangs_up_ends_nothing_and_swallows_what_is_printed() -> None:
    terminal, end = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", HANGS_UP], stdin=end, stdout=end, stderr=end, cwd=ROOT) as process:
        try:
            os.close(end)
            assert os.read(terminal, 5) == b"ready"
            os.close(terminal)
            process.send_signal(signal.SIGHUP)
            assert process.wait(60) == len(b"nothing")
        finally:
            process.kill()
