"""One long row must not end the others: a ragged cohort of a dense layout never asks for more columns than there are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.bucket_key import Candidate
from scheduler_svc.core.dense_room import rows_side_by_side
from tests.support.core_world import House


def row(key: int, length: int, *, urgency: int = 0) -> Candidate:
    return Candidate(key=key, length=length, num_tokens=length + 1, is_prompt=False, urgency=urgency)


def columns(rows: list[Candidate]) -> int:
    """What an executor allocates: whole tiles of 16 for the longest row and its new token, one tile more, for each row."""
    longest = max(each.length for each in rows)
    return len(rows) * (-(-(longest + 1) // 16) * 16 + 16)


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 5)), min_size=1, max_size=30), st.integers(1, 4000))
def test_what_runs_fits_and_somebody_runs(drawn, num_columns):
    rows = [row(key, length, urgency=urgency) for key, (length, urgency) in enumerate(drawn)]
    picked = rows_side_by_side(rows, num_columns=num_columns)
    assert picked
    assert len(picked) == 1 or columns(picked) <= num_columns
    assert [each.key for each in picked] == sorted(each.key for each in picked)
    assert min(-each.urgency for each in rows) in {-each.urgency for each in picked}


def test_who_waited_longest_takes_its_turn():
    rows = [*(row(key, 20) for key in range(6)), row(6, 400)]
    assert [each.key for each in rows_side_by_side(rows, num_columns=600)] == [0, 1, 2, 3, 4, 5]
    rows[6] = row(6, 400, urgency=1)
    assert [each.key for each in rows_side_by_side(rows, num_columns=600)] == [6]


@pytest.mark.parametrize("layout", ["aligned", "stripped"])
def test_a_long_row_among_short_ones_ends_nobody(layout):
    """160 blocks hold all 13 rows by their own lengths, but not 13 rows as wide as the longest."""
    limits = {"max_num_batched_tokens": 1000, "admission": "ragged", "layout": layout, "enable_prefix_caching": False}
    one = House(
        limits=limits,
        ragged_granted=True,
        ragged_reason="told so",
        num_blocks=160,
        max_model_len=1000,
        max_num_batched_tokens=1000,
        max_num_seqs=16,
    )
    one.ask([99] * 400, max_tokens=120, end_after=120)
    one.plan()
    one.deliver(0)
    one.ask(*([2 + index] * 30 for index in range(12)), max_tokens=20, end_after=20)
    widest = 0
    while one.core.stats().num_running or len(one.core.queue):
        one.plan()
        flight = one.books.in_flight[-1]
        if set(flight.rows.kinds()) == {3}:
            longest = max(int(one.books.cols.confirmed[slot]) for slot in flight.rows.slots)
            widest = max(widest, len(flight.rows.keys) * (-(-(longest + 1) // 16) * 16 + 16))
        one.deliver(0)
    assert 0 < widest <= 160 * 16
