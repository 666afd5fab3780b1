"""Which rows a plan has: budget, chunks, order, repetition, plans in flight."""

import pytest

from scheduler_svc.core import paged
from scheduler_svc.core.types import Advance, CacheOp, Layout, RowKind
from tests.support.core_world import House, executor_info

PREFILL, LAST, DECODE = int(RowKind.PREFILL), int(RowKind.PREFILL_LAST), int(RowKind.DECODE)


def test_prompt_longer_than_the_budget_is_fed_in_chunks():
    house = House(limits={"max_num_batched_tokens": 8, "plans_in_flight": 3})
    house.ask(list(range(2, 22)))
    plans = [house.plan() for _ in range(3)]
    assert [(p.row_kinds, p.num_tokens, p.starts) for p in plans] == [
        ([PREFILL], [8], [0]),
        ([PREFILL], [8], [8]),
        ([LAST], [4], [16]),
    ]
    house.finish()


def test_decodes_first_then_prefill_with_what_is_left_of_the_budget():
    house = House(limits={"max_num_batched_tokens": 8})
    house.ask([2, 3], [4, 5])
    house.plan()
    house.ask(list(range(2, 22)))
    plan = house.plan()
    assert plan.row_kinds == [DECODE, DECODE, PREFILL]
    assert plan.num_tokens == [1, 1, 6]
    assert plan.starts == [0, 0, 0]
    house.finish()


@pytest.mark.parametrize("chunk", [1, 3, 16, 64, 0])
def test_b066_any_chunk_size_gives_the_same_tokens(chunk):
    house = House(limits={"prefill_chunk": chunk, "max_num_batched_tokens": 70})
    house.ask([*range(2, 60)], [*range(9, 49)], [7] * 33, max_tokens=12)
    house.finish()
    assert all(client.got == client.expected for client in house.clients.values())


def test_prefill_chunk_bounds_one_row_not_the_step():
    house = House(limits={"prefill_chunk": 4})
    house.ask([*range(2, 12)], [*range(30, 40)])
    assert house.plan().num_tokens == [4, 4]


def test_new_sequence_joins_a_running_batch():
    house = House()
    house.ask([2, 3], max_tokens=8, end_after=99)
    house.plan()
    house.plan()
    house.ask([5, 6, 7])
    house.deliver(0)
    plan = house.plan()
    assert plan.row_kinds == [DECODE, LAST]
    assert [new.key for new in plan.new_sequences] == [1]


def test_steady_decode_repeats_rows_and_sends_only_new_blocks():
    house = House(block_size=4)
    house.ask([2, 3], [4, 5, 6], max_tokens=20, end_after=99)
    house.plan()
    first = house.plan()
    assert not first.repeat_rows
    assert first.row_kinds == [DECODE, DECODE]
    sent = []
    for _ in range(6):
        house.deliver(0)
        plan = house.plan()
        assert plan.repeat_rows
        assert plan.slots == plan.row_kinds == plan.num_tokens == plan.starts == []
        assert plan.cohort_id == first.cohort_id
        sent += list(zip(plan.block_rows, plan.block_ids, strict=True))
    # Rows fill their blocks at different steps; each asks for one block then.
    assert {row for row, _ in sent} == {0, 1}
    house.finish()


def test_cohort_rises_when_membership_changes():
    house = House()
    house.ask([2, 3], max_tokens=9, end_after=99)
    a = house.plan().cohort_id
    house.ask([4, 5], max_tokens=9, end_after=99)
    b = house.plan().cohort_id
    house.deliver(0)
    c = house.plan()
    assert a < b == c.cohort_id
    assert not c.repeat_rows, "the second row decodes for the first time"
    house.deliver(0)
    assert house.plan().repeat_rows


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_plans_in_flight_are_bounded_and_name_the_last_result(depth):
    house = House(limits={"plans_in_flight": depth})
    house.ask([2, 3], max_tokens=9, end_after=99)
    plans = []
    while house.send(0):
        plans.append(house.books.in_flight[-1].plan)
    assert [(p.step_id, p.based_on_result_step) for p in plans] == [(step, 0) for step in range(1, depth + 1)]
    house.deliver(0)
    assert house.plan().based_on_result_step == 1
    assert not house.send(0)


def test_every_plan_carries_grant_layout_and_cadence():
    house = House(limits={"want_digests": True})
    other = house.join(executor_info())
    house.ask([2, 3], [4, 5])
    plan = house.plan()
    assert (plan.grant_id, plan.executor_id) == (1, 0)
    assert (plan.layout, plan.advance, plan.cache_op) == (Layout.PAGED, Advance.PER_SEQUENCE, CacheOp.NOTHING)
    assert plan.want_digests
    assert house.core.executors[other].grant_id == other + 1


def test_rows_are_never_scheduled_past_max_tokens():
    """Three plans may be in flight, but the second token is the last."""
    house = House(limits={"plans_in_flight": 3})
    house.ask([2, 3, 4], max_tokens=2, end_after=9)
    house.plan()
    house.plan()
    assert not house.send(0)
    house.finish()
    assert len(house.clients[0].got) == 2


def test_rows_are_never_scheduled_past_max_model_len():
    house = House(max_model_len=6, limits={"plans_in_flight": 3})
    house.ask([2, 3, 4], max_tokens=3, end_after=9)
    house.finish()
    assert len(house.clients[0].got) == 3


def test_more_residents_than_budget_are_never_admitted():
    house = House(limits={"max_num_batched_tokens": 3})
    house.ask(*([token, token] for token in range(2, 8)), max_tokens=6)
    for _ in range(40):
        if house.send(0):
            plan = house.books.in_flight[-1]
            assert plan.rows.num_tokens <= 3
        house.deliver(0)
    house.finish()


def test_scoring_only_request_emits_nothing_and_ends():
    house = House()
    house.ask([2, 3, 4, 5], max_tokens=0, prompt_logprobs=True)
    house.finish()
    client = house.clients[0]
    assert client.got == []
    assert client.prompt_logprobs == [1, 2, 3]


def test_token_ids_of_newcomers_bound_a_plan(monkeypatch):
    """All ids of a newcomer travel, those in cached blocks too: 64 long prompts that hit would make a message nobody accepts."""
    monkeypatch.setattr(paged, "MAX_NEW_TOKENS", 40)
    house = House()
    stem = list(range(2, 18))
    house.ask([*stem, 20])
    house.finish()
    house.ask(*([*stem, token] for token in range(21, 26)), max_tokens=9, end_after=99)
    [long] = house.ask([*stem] * 3, max_tokens=9, end_after=99)
    plans = [house.plan() for _ in range(2)]
    house.deliver(0)
    plans.append(house.plan())
    house.deliver(0)
    plans.append(house.plan())
    assert [len(plan.new_sequences) for plan in plans] == [2, 2, 1, 1]
    assert [new.key for new in plans[3].new_sequences] == [long], "one that is longer than the bound still enters, alone"
    house.finish()
