"""The law, counted in the plans of the real core: rows A2 to A5, A11 and A12 of domain.md section 6."""

import json

import pytest

from launcher import law as door
from scheduler_svc.law import render, tables
from scheduler_svc.law.clockwork import Clockwork


@pytest.mark.parametrize(("num_sequences", "num_lengths"), tables.CASES)
def test_a2_bucket_shattering_law(num_sequences, num_lengths):
    """Refused (B/D)*32 rows in 32 steps and B/D in the last, granted B*32 and B: integers, no tolerance."""
    [case] = tables.law([(num_sequences, num_lengths)])
    effective = num_sequences // num_lengths
    assert (case.refused.num_rows, case.refused.last_rows) == (effective * 32, effective)
    assert (case.granted.num_rows, case.granted.last_rows) == (num_sequences * 32, num_sequences)


def test_a2_sequences_begin_at_the_lengths_of_the_law():
    for size, count in ((32, 8), (128, 32)):
        lengths = [100 + index % count * 64 for index in range(size)]
        assert Clockwork(tables.lengths_of(size, count), granted=False).lengths() == lengths


def test_a4_admitted_batch_size_stops_buying_anything_once_lengths_diverge():
    assert tables.curve() == ([1, 1, 1], [8, 32, 128])


def test_a5_one_length_is_one_bucket_in_both_columns():
    """The negative control of the control: without divergence the grant changes nothing."""
    [case] = tables.law([(32, 1)])
    assert case.refused == case.granted == tables.Cell(32 * 32, 32)


def test_a11_two_lengths_one_merge_apart_are_whole_by_step_3_and_stay_whole():
    clockwork = Clockwork([100] * 32 + [102] * 32, granted=False)
    assert [clockwork.step() for _ in range(12)] == [32, 32] + [64] * 10
    assert len(set(clockwork.lengths())) == 1


def test_a12_the_boundary_lies_between_5_and_6_lengths_64_apart():
    edges = tables.boundary((5, 6))
    assert [(edge.num_lengths, edge.waited, edge.whole_after) for edge in edges] == [(5, 256, 256), (6, 320, None)]


def test_the_door_prints_exact_figures_that_say_they_are_simulated_and_draws_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("scheduler_svc.law.plot.SIZES", (8,))  # the picture's own runs take seconds
    picture = tmp_path / "law.png"
    assert door.main(["--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[2:7]] == [
        [str(n) for n in (b, d, b // d * 32, b // d * 32, b // d, b * 32, b * 32, b)] + ["sim"] for b, d in tables.CASES
    ]


def test_the_tables_as_json_are_tagged():
    told = json.loads(render.as_json([], [1, 1, 1], [8, 32, 128], []))
    assert told["provenance"] == "sim"
    assert told["curve"] == {"admitted": [8, 32, 128], "refused": [1, 1, 1], "granted": [8, 32, 128]}


@pytest.mark.parametrize("name", ["none/law.png", "law.docx"])
def test_a_picture_that_cannot_be_written_is_one_line_at_once(tmp_path, capsys, name):
    assert door.main(["--plot", str(tmp_path / name)]) == 2
    assert "--plot" in capsys.readouterr().err
