"""When the steady window begins and ends, and what a house must be before it is measured. Rows E6, E15 and E19 of domain.md."""

import asyncio
from pathlib import Path

import pytest

from bench.client import Target
from bench.curve_window import Board
from bench.house import ArmRefused, House, Standing, _check, refusals
from bench.scrape import samples_of
from bench.server import Server


async def test_e19_a_round_is_over_when_the_slowest_worker_has_finished_once_more() -> None:
    board = Board(3)
    once = asyncio.create_task(board.all_have_done(1))
    for worker in (0, 0, 1, 0):
        board.note(worker)
        await asyncio.sleep(0)
        assert not once.done()
    board.note(2)
    await asyncio.wait_for(once, 1)
    again = asyncio.create_task(board.all_have_done(1))
    await asyncio.sleep(0)
    assert not again.done(), "what was finished before does not count again"
    for worker in (2, 1, 0):
        board.note(worker)
    await asyncio.wait_for(again, 1)
    twice = asyncio.create_task(board.all_have_done(2))
    for worker in (0, 1, 2, 0, 1, 2):
        await asyncio.sleep(0)
        assert not twice.done()
        board.note(worker)
    await asyncio.wait_for(twice, 1)


def house(admission: str, layout: str = "aligned") -> House:
    told = {"model": "", "precision": "auto", "backend": "fake", "record": Path("r")}
    return House(admission=admission, layout=layout, plans_in_flight=1, max_num_seqs=8, num_blocks=9, **told)


def found(admission: str, *, layout: str, granted: bool) -> Standing:
    executor = {"layout": layout, "ragged_granted": granted, "ragged_reason": "because"}
    return Standing(Server("http://x"), Target("http://x", "m"), {"admission": admission, "executors": [executor]})


def test_e6_flags_are_read_back_from_the_server() -> None:
    _check(house("bucketed"), found("bucketed", layout="aligned", granted=False))
    _check(house("bucketed", "stripped"), found("bucketed", layout="aligned", granted=False))
    _check(house("ragged", "stripped"), found("ragged", layout="stripped", granted=True))
    _check(house("paged", "paged"), found("paged", layout="paged", granted=True))
    with pytest.raises(ArmRefused, match=r"the arm needs ragged True, the server runs False \(refused: because\)"):
        _check(house("ragged"), found("ragged", layout="aligned", granted=False))
    with pytest.raises(ArmRefused, match="needs admission bucketed, the server runs ragged"):
        _check(house("bucketed"), found("ragged", layout="aligned", granted=True))
    with pytest.raises(ArmRefused, match="needs layout stripped"):
        _check(house("ragged", "stripped"), found("ragged", layout="aligned", granted=True))


def test_e15_a_refusal_in_the_log_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "services.log"
    assert refusals(log) == []
    log.write_text("WARNING one\nWARNING admission `ragged` was asked for, executor=x cannot honour it: refused by a setting\n")
    assert refusals(log) == ["WARNING admission `ragged` was asked for, executor=x cannot honour it: refused by a setting"]


def test_d18_a_metric_that_is_not_exposed_is_absent() -> None:
    text = '# TYPE drumline:steps counter\ndrumline:steps_total{executor="a"} 3\ndrumline:steps_total{executor="b"} 4\n'
    assert samples_of(text) == {"steps_total": 7.0}
