"""The price: who goes when, what is sent, ratios of neighbours, and what copies must be. Rows E17 and E18 of domain.md."""

from collections import Counter
from dataclasses import replace

import pytest

from bench import price, price_report
from bench.memory import Geometry
from bench.order import rotated
from bench.price_arms import ARMS
from bench.price_config import PriceSettings
from bench.price_figures import PriceRun, copies_verdict, price_lines, ratios, spread_of
from bench.price_load import longest_of, shrunk, streams_of
from bench.provenance import Provenance, provenance_of
from bench.steps import Summary, summary_of

EMPTY = summary_of([])
STEPS = replace(EMPTY, num_steps=9, decode_tokens_per_s=50.0, decode_rows=4.0, copies_per_step=3.0, steady_copies=0.0)
HERE = Provenance(kind="cpu", precision="f32", device="cpu", machine="2 x Test", model="m", version="0")
WORDS = range(100, 200)


def run(arm: str, turn: int, rate: float, *, steps: Summary = STEPS, rows: int = 8) -> PriceRun:
    return PriceRun(arm, rows, turn, rate, 0.0, full_step_ms=1e3 / rate, steps=steps)


def test_every_arm_has_every_place_as_often() -> None:
    places = Counter((arm.letter, place) for turn in range(4) for place, arm in enumerate(rotated(ARMS, turn)))
    assert set(places.values()) == {1}
    assert rotated("abc", 3) == ["c", "b", "a"], "and backwards in the next round"


def test_arms_differ_in_what_is_compared_and_paged_runs_at_one_plan_too() -> None:
    assert [(arm.layout, arm.plans_in_flight) for arm in ARMS] == [("aligned", 1), ("stripped", 1), ("paged", 1), ("paged", 2)]
    assert len({arm.letter for arm in ARMS}) == len(ARMS)


def test_all_arms_of_a_turn_get_the_same_and_lengths_are_spread_evenly() -> None:
    wanted = PriceSettings()
    one, again, later = (streams_of(wanted, WORDS, num_rows=32, turn=turn) for turn in (0, 0, 1))
    assert one == again
    lengths = Counter(len(request.prompt) for [request] in one)
    assert set(lengths) == set(wanted.prompt_tokens)
    assert max(lengths.values()) - min(lengths.values()) <= 1
    assert [len(r.prompt) for [r] in one] == [len(r.prompt) for [r] in later], "a turn changes words, never lengths"
    assert one != later
    assert longest_of(wanted) == 512 + 64


def test_smoke_is_small() -> None:
    small = shrunk(PriceSettings(smoke=True))
    assert small.repeats * sum(small.rows) * (longest_of(small) + 1) < 200


def test_e17_a_ratio_is_of_runs_that_stood_beside_each_other() -> None:
    """The machine became twice as slow in turn 1; the price did not change."""
    runs = [run("A", 0, 100), run("B", 0, 80), run("A", 1, 50), run("B", 1, 40), run("B", 2, 1000)]
    found = ratios(runs, arm="B", num_rows=8)
    assert found is not None
    assert (found.median, found.low, found.high) == pytest.approx((0.8, 0.8, 0.8))
    assert ratios(runs, arm="B", num_rows=8, of="decode") == spread_of([1.0])
    assert ratios(runs, arm="B", num_rows=8, of="full") == found
    assert ratios([replace(one, full_step_ms=None) for one in runs], arm="B", num_rows=8, of="full") is None
    assert ratios(runs, arm="C", num_rows=8) is None
    assert ratios(runs, arm="B", num_rows=9) is None


def test_a_spread_around_one_shows_no_difference() -> None:
    lines = price_lines([run("A", 0, 10), run("B", 0, 9), run("A", 1, 10), run("B", 1, 11)], tag="cpu")
    assert "no difference shown of the whole run" in lines[0]
    assert "NA (no pair of runs)" in lines[1]
    assert all(line.endswith("(cpu)") for line in lines)


@pytest.mark.parametrize(
    ("layout", "p50", "per_row", "verdict"),
    [
        ("aligned", 0, 0.9, "as it must be"),
        ("aligned", 60, 60, "NOT as it must be"),
        ("stripped", 480, 60, "as it must be"),
        ("stripped", 480, 59, "NOT as it must be"),
        ("paged", 0, 0, "as it must be"),
        ("paged", 1, 1, "NOT as it must be"),
    ],
)
def test_e18_copies_of_steady_steps_are_judged(layout: str, p50: float, per_row: float, verdict: str) -> None:
    summary = replace(STEPS, steady_copies_p50=p50, copies_per_row=per_row)
    assert copies_verdict(summary, layout=layout, row_copies=60).startswith(verdict)


def test_d18_copies_nobody_counted_are_na() -> None:
    assert copies_verdict(EMPTY, layout="aligned", row_copies=60).startswith("NA")
    assert copies_verdict(replace(STEPS, steady_copies_p50=0, copies_per_row=0), layout="paged", row_copies=0).startswith("NA")
    assert spread_of([None, None]) is None


def test_the_report_names_where_its_figures_come_from() -> None:
    runs = [run(arm.letter, turn, 10.0 + turn) for arm in ARMS for turn in range(2)]
    table = price_report.table_of(runs, provenance=HERE, row_copies=60)
    assert table.row_count == len(ARMS)
    assert "cpu, f32, m, 2 x Test" in str(table.title)
    told = price_report.json_of(runs, provenance=HERE, wanted=PriceSettings(), row_copies=60)
    assert '"kind": "cpu"' in told
    assert told.count('"turn"') == len(runs)


@pytest.mark.parametrize(("device", "kind"), [("fake", "sim"), ("cpu (x86, 2 threads)", "cpu"), ("cuda:0 H200", "gpu")])
def test_d14_the_fake_executor_is_a_simulation(device: str, kind: str) -> None:
    assert provenance_of({"device": device, "precision": "f32"}, model="m").kind == kind


def test_servers_that_do_not_fit_are_not_started(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(price, "available_bytes", lambda: 1 << 30)
    assert price.main(["--backend", "fake"]) == 2
    assert "nothing was measured: 4 servers need up to 4" in capsys.readouterr().err
    assert price._too_large(PriceSettings(), Geometry(token_bytes=8, weight_bytes=0, row_copies=2, max_position=100)).startswith(
        "rows of 576"
    )
