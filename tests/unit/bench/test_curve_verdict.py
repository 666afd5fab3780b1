"""The verdict, on rows that were never measured. Rows E9 to E11 and D18 of domain.md."""

import json
from collections.abc import Callable

import pytest

from bench.curve_cells import ARMS, Cell
from bench.curve_config import CurveSettings
from bench.curve_plot import draw
from bench.curve_results import json_of, summary_of
from bench.curve_row import COLUMNS, FIGURES, Row, row_of
from bench.curve_verdict import Rates, agreement, matching, verdict_of, worth
from bench.curve_window import Window
from bench.server import Cost

BATCHES = (1, 8, 32, 64, 128)
FALLING = {1: 1.0, 8: 0.8, 32: 0.5, 64: 0.4, 128: 0.3}
FLAT = dict.fromkeys(BATCHES, 1.0)
ARM = {arm.letter: arm for arm in ARMS}


def rows_of(rate: Callable[[str, int], float | None]) -> list[Row]:
    rows = []
    for letter, arm in ARM.items():
        for batch in BATCHES:
            value = rate(letter, batch)
            figures = {} if value is None else {"tok_s": value, "prompt_tokens": 10 * value, "output_tokens": 5 * value}
            reasons = {"": "not over after 9 s"} if value is None else {}
            rows.append(Row(Cell(arm, batch), figures, reasons, grant="granted: test", provenance="sim, test"))
    return rows


def shattering(letter: str, batch: int) -> float:
    """Mixed lengths stop the bucketed arm from growing at all."""
    return 10.0 if letter == "B" else 10.0 * batch


@pytest.mark.parametrize(
    ("curve", "control", "word", "text"),
    [
        (FALLING, FLAT, "falls", "falls: shattering: mixed/uniform goes from 1.00 at 1 to 0.30 at 128 workers"),
        (FLAT, FLAT, "flat", "flat, hypothesis dead"),
        ({1: 0.8, 8: 0.82, 128: 0.78}, FLAT, "flat", "flat, hypothesis dead"),
        (FALLING, FALLING, "unclear", "falls, but so does the control"),
        (FALLING, {}, "falls", "no ragged control at both ends"),
        ({1: 1.0, 128: 0.5}, {1: 1.0, 128: 0.8}, "falls", "the ragged control goes from 1.00 to 0.80"),
        ({1: 1.0, 128: 1.3}, FLAT, "rises", "not shattering"),
        ({1: 1.0, 8: 0.5, 128: 1.0}, FLAT, "unclear", "in between"),
        ({8: 0.5}, FLAT, "NA", "fewer than two"),
        ({}, {}, "NA", "fewer than two"),
    ],
)
def test_e9_the_verdict(curve: dict[int, float], control: dict[int, float], word: str, text: str) -> None:
    verdict = verdict_of(curve, control=control, tolerance=0.1)
    assert verdict.word == word
    assert text in verdict.text


def test_e9_to_e11_a_run_that_shatters() -> None:
    rows = rows_of(shattering)
    summary = summary_of(rows, wanted=CurveSettings())
    assert "verdict: falls: shattering: mixed/uniform goes from 1.00 at 1 to 0.01 at 128 workers" in summary
    assert "tok_s(D)/tok_s(B) at 128 workers: 128.00" in summary
    assert agreement(Rates(rows), tolerance=0.1) == [
        "C/A at 1 worker: 1.000, they agree (tolerance 10%)",
        "D/B at 1 worker: 1.000, they agree (tolerance 10%)",
    ]
    assert matching(Rates(rows))[0] == "B/A at 1 workers: 1.00"
    told = json.loads(json_of(rows, wanted=CurveSettings()))
    assert told["verdict"]["word"] == "falls"
    assert told["ratios"]["bucketed"]["128"] == pytest.approx(10 / 1280)
    assert len(told["rows"]) == 20


def test_e11_one_worker_that_notices_the_rule_is_said_aloud() -> None:
    lines = agreement(Rates(rows_of(lambda letter, batch: 12.0 if letter == "C" else 10.0)), tolerance=0.1)
    assert "DO NOT AGREE" in lines[0]
    assert "they agree" in lines[1]


def test_d18_a_missing_cell_is_na_with_its_reason_and_never_zero() -> None:
    rows = rows_of(lambda letter, batch: None if (letter, batch) == ("B", 128) else shattering(letter, batch))
    rates = Rates(rows)
    assert worth(rates) == "tok_s(D)/tok_s(B) at 128 workers: NA (cell B-128: not over after 9 s)"
    assert rates.over("B", "A", batch=7).why == "cell B-7 was not run"
    summary = summary_of(rows, wanted=CurveSettings())
    assert "128: NA" in summary
    assert "cells without a rate: B-128" in summary
    [line] = [row.tsv() for row in rows if row.cell.name == "B-128"]
    fields = dict(zip(COLUMNS, line.split("\t"), strict=True))
    assert {fields[name] for name in FIGURES} == {"NA"}
    assert fields["why_na"] == "all: not over after 9 s"
    assert json.loads(json_of(rows, wanted=CurveSettings()))["rows"][9]["tok_s"] is None


def test_e15_every_row_has_every_column_on_one_line() -> None:
    row = Row(Cell(ARM["D"], 8), {"tok_s": 1.5}, {"running": "two\nlines\tof words"}, refusal="x cannot honour it: y")
    line = row.tsv()
    assert len(line.split("\t")) == len(COLUMNS)
    assert "\n" not in line
    assert "cannot honour it" in line


def window(before: dict[str, float], after: dict[str, float], *, cost: Cost | None = None) -> Window:
    cost = cost or Cost(wall_s=10, busy_s=12, cpu_s={"executor": 8.0}, rss_bytes={"executor": 2**30}, idle_share=None)
    return Window(0, 10**10, before, after, num_requests=3, cost=cost, client_s=1.0, gauges=[before, after])


def test_a_row_is_made_of_totals_that_rose_and_gauges_that_were_seen() -> None:
    before = {
        "generation_tokens_total": 100.0,
        "prompt_tokens_total": 50.0,
        "num_requests_running": 2.0,
        "num_requests_waiting": 0.0,
    }
    after = {
        "generation_tokens_total": 400.0,
        "prompt_tokens_total": 250.0,
        "num_requests_running": 4.0,
        "num_requests_waiting": 1.0,
    }
    row = row_of(Cell(ARM["A"], 4), window(before, after), None, grant="refused: test", refusal="", provenance="sim")
    assert (row.get("tok_s"), row.get("total_tok_s"), row.get("running"), row.get("rss_mib")) == (30, 50, 3, 1024)
    assert row.get("decode_tok_s") is None
    assert row.why("decode_tok_s") == "no decode step is in the recording"


def test_e14_no_signal_is_na_not_0() -> None:
    blind = Cost(wall_s=10, busy_s=1, cpu_s=None, rss_bytes=None, idle_share=None)
    row = row_of(Cell(ARM["A"], 4), window({}, {}, cost=blind), None, grant="", refusal="", provenance="sim")
    assert {name for name in FIGURES if row.get(name) is None} == set(FIGURES) - {"window_s", "requests"}
    assert "exposes no such metric" in row.why("tok_s")
    still = {"generation_tokens_total": 7.0, "prompt_tokens_total": 7.0}
    row = row_of(Cell(ARM["A"], 4), window(still, still), None, grant="", refusal="", provenance="sim")
    assert row.get("tok_s") is None
    assert row.why("tok_s") == "no token was counted"


def test_the_picture_is_drawn_of_whole_and_of_empty_runs(tmp_path) -> None:
    for name, rows in (("whole.png", rows_of(shattering)), ("empty.png", rows_of(lambda *_: None))):
        draw(tmp_path / name, rows, title="sim")
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
