"""Which peer is the best one, ratios of runs that stood beside each other, and the tables made of them."""

from pathlib import Path

import pytest

from bench.client import BenchError
from bench.measure import Measured
from bench.peers_report import BEGIN, COLUMNS, END, markdown_of, notes_of, placed, quality_rows, rows_of
from bench.peers_results import DRUMLINE, Results, Run, Standing
from bench.workloads import SHAPES

W1 = SHAPES["W1"]


def run(server: str, repetition: int, rate: float, *, others: float = 0.0, **more: int) -> Run:
    figures = Measured(
        tokens_per_s=rate,
        num_output_tokens=512,
        wall_s=512 / rate,
        ttft_p50_s=0.1,
        ttft_p95_s=0.2,
        itl_p50_s=0.01,
        itl_p95_s=0.02,
        client_share=0.1,
        others_share=others,
        cpu_s={"server": 2.5},
        rss_bytes={"server": 3 << 20},
    )
    return Run(server, "W1", repetition, figures, **more)


def results(**rates: list[float]) -> Results:
    made = Results({name: Standing(name, "as it likes", perplexity=10.0) for name in rates}, reference=10.0)
    made.runs = [run(name, repetition, rate) for name, those in rates.items() for repetition, rate in enumerate(those)]
    return made


def test_a_ratio_is_taken_within_a_repetition():
    """Medians over medians would say 2.0 here; a machine that slows down in repetition 1 hits both servers."""
    ratio = results(drumline=[200, 60, 300], slow=[100, 20, 200]).ratio("slow", "W1")
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 1.5, 3.0)


def test_a_repetition_that_one_of_them_missed_says_nothing():
    some = results(drumline=[200, 60], peer=[100])
    assert some.ratio("peer", "W1").text(1) == "2.0 (2.0 .. 2.0)"
    assert results(drumline=[200], peer=[]).ratio("peer", "W1") is None


def test_the_best_peer_has_the_highest_median_and_not_the_highest_run():
    assert results(drumline=[900, 900, 900], steady=[50, 50, 50], lucky=[10, 10, 400]).best_peer("W1") == "steady"


@pytest.mark.parametrize(("perplexity", "counts"), [(10.1, True), (10.11, False), (9.0, True), (None, True)])
def test_a_peer_more_than_one_percent_worse_than_float32_does_not_count(perplexity, counts):
    """One that nobody could measure does: the doubt is ours to bear. One that predicts better is not damaged."""
    some = results(drumline=[100], right=[50], fast=[400])
    some.standings["fast"] = Standing("fast", "requantised", perplexity=perplexity, reason="no tool")
    assert some.counts("fast") == counts
    assert some.best_peer("W1") == ("fast" if counts else "right")
    assert len(rows_of(some, [W1])) == 3, "it is shown all the same"


def test_drumline_is_nobodys_peer():
    assert results(drumline=[900], peer=[1]).best_peer("W1") == "peer"
    assert results(drumline=[900]).best_peer("W1") is None


def test_rows_mark_the_best_peer_and_what_is_in_process():
    some = results(drumline=[150, 160, 140], fast=[100, 100, 100])
    some.standings["fast"] = Standing("fast", "the file", in_process=True, perplexity=10.0)
    some.standings["gone"] = Standing("gone", "the file", reason="it did not start")
    some.failures["gone", ""] = "it did not start: no such processor"
    some.runs[0] = run(DRUMLINE, 0, 150, others=0.07, peak_rows=31, preemptions=2)
    ours, theirs, missing = rows_of(some, [W1])
    assert {len(ours), len(theirs), len(missing)} == {len(COLUMNS)}
    assert ours[:4] == ["W1", "drumline", "150.0 (140.0 .. 160.0)", ""]
    assert ours[4:] == ["100 / 200", "10.0 / 20.0", "3", "2.5 / 0.3", "7", "31 / 2"]
    assert theirs[1:4] == ["fast (in-process) *", "100.0 (100.0 .. 100.0)", "1.50 (1.40 .. 1.60)"]
    assert set(missing[2:]) == {"NA"}
    notes = "\n".join(notes_of(some, [W1]))
    assert "1.50 (1.40 .. 1.60) times the best peer, fast" in notes
    assert "gone: no more figures: it did not start: no such processor" in notes
    assert "W1 drumline" in notes
    assert [row[2:] for row in quality_rows(some)] == [
        ["10.000", "+0.00 %", ""],
        ["10.000", "+0.00 %", "yes"],
        ["NA: it did not start", "NA", "yes"],
    ]
    assert markdown_of(some, [W1]).count("\n| W1 |") == 3


def test_tables_replace_what_stood_between_the_marks(tmp_path):
    file = tmp_path / "performance.md"
    file.write_text(placed("first\n", file))
    file.write_text("# Before\n" + file.read_text() + "After\n")
    file.write_text(placed("second\n", file))
    assert file.read_text() == f"# Before\n{BEGIN}\n\nsecond\n\n{END}\nAfter\n"


@pytest.mark.parametrize("text", ["# A page\n", f"{BEGIN}\n", f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_page_without_the_marks_is_never_overwritten(tmp_path, text):
    file = tmp_path / "performance.md"
    file.write_text(text)
    with pytest.raises(BenchError, match="lacks the marks"):
        placed("table\n", file)


def test_the_performance_page_has_a_place_for_the_tables():
    page = Path(__file__).resolve().parents[3] / "docs" / "performance.md"
    assert "here they are" in placed("here they are\n", page)
