"""Races of the seam: what is in flight when a sequence ends, is aborted or fails, and results that contradict the books."""

from dataclasses import replace
from random import Random

import pytest

from scheduler_svc.core.errors import ResultMismatch
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import FinishReason, Limits, Plan, Request, StepResult
from tests.support.core_world import House, executor_info


def test_row_that_finished_is_skipped_in_the_plan_that_was_on_its_way():
    house = House(limits={"plans_in_flight": 3})
    house.ask([2, 3], max_tokens=9, end_after=2)
    for _ in range(3):
        house.plan()
    house.finish()
    assert house.clients[0].got == house.clients[0].expected
    assert house.clients[0].reason is FinishReason.STOP


def test_row_that_fails_ends_alone():
    house = House(fails={(2, 0)})
    house.ask([2, 3], [4, 5], max_tokens=5, end_after=99)
    house.finish()
    assert house.clients[0].reason is FinishReason.ERROR
    assert len(house.clients[0].got) == 1
    assert house.clients[1].got == house.clients[1].expected


def test_slot_is_reused_only_when_every_plan_that_names_it_has_returned():
    house = House(max_num_seqs=1, limits={"plans_in_flight": 3})
    house.ask([2, 3], max_tokens=1)
    house.ask([4, 5], max_tokens=1)
    house.plan()
    assert not house.send(0)
    house.deliver(0)
    freeing = house.plan()
    assert (freeing.freed_slots, freeing.new_sequences) == ([0], [])
    assert not house.send(0), "the plan that frees the slot names it, and has not returned"
    house.deliver(0)
    assert house.plan().new_sequences[0].slot == 0
    house.finish()


@pytest.mark.parametrize("sent", range(5))
@pytest.mark.parametrize("delivered", range(5))
@pytest.mark.parametrize("after", [0, 1])
def test_b057_abort_at_any_moment(sent, delivered, after):
    """Before the first plan, between plan and result, after the end: late results are dropped, nothing leaks, neighbours go on."""
    house = House(limits={"plans_in_flight": 4, "prefill_chunk": 3})
    house.ask([2, 3, 4, 5], [6, 7, 8, 9], max_tokens=6, end_after=5)
    for _ in range(sent):
        house.send(0)
    for _ in range(delivered):
        house.deliver(0)
    house.abort([0])
    for _ in range(after):
        house.send(0)
        house.abort([0])
    house.finish()
    assert house.clients[0].reason is not None
    assert house.clients[1].got == house.clients[1].expected
    assert house.core.counters.num_unknown_aborts >= after


def test_aborted_slot_is_named_to_the_executor_once():
    house = House(limits={"plans_in_flight": 3})
    house.ask([2, 3], [4, 5], max_tokens=9)
    house.plan()
    house.abort([0])
    plan = house.plan()
    assert (plan.aborted_slots, plan.freed_slots) == ([0], [])
    assert house.plan().aborted_slots == []
    house.finish()


def test_b054_500_streams_dropped_after_their_first_token():
    house = House(limits={"max_waiting_requests": 500})
    house.thorough = False
    keys = [house.ask([2 + key % 40, 3, 4], max_tokens=30, end_after=99)[0] for key in range(500)]
    for _ in range(2000):
        house.send(0)
        house.deliver(0)
        house.abort([key for key in keys if house.clients[key].got and house.clients[key].reason is None])
        if not house.core.sequences:
            break
    house.ask([2, 3], max_tokens=3)
    house.finish()
    assert house.clients[500].got == house.clients[500].expected


def test_b055_shared_prefix_and_aborts_at_random_moments():
    random = Random(7)
    house = House(num_blocks=40, limits={"plans_in_flight": 3})
    house.thorough = False
    for _ in range(20):
        keys = house.ask(*([*range(2, 22), random.randrange(2, 40)] for _ in range(10)), max_tokens=5)
        for _ in range(random.randrange(8)):
            random.choice([house.send, house.deliver])(0)
        house.abort(random.sample(keys, 7))
    house.finish()
    assert sum(house.books.kv.pool.refs) == 0


def test_b064_no_answer_holds_another_sequences_tokens():
    """32 at a time with secrets, a fifth aborted; `World` compares every token, and every row's prefix, with its own."""
    random = Random(3)
    house = House(max_num_seqs=32, num_blocks=120)
    house.thorough = False
    for _ in range(6):
        keys = house.ask(*([2, 2, 2, 2, random.randrange(2, 50), random.randrange(2, 50)] for _ in range(32)), max_tokens=8)
        for _ in range(random.randrange(12)):
            random.choice([house.send, house.deliver])(0)
        house.abort([key for key in keys if random.random() < 0.2])
        house.settle()
    house.finish()


def test_b029_equal_request_ids_are_two_sequences():
    house = House()
    house.ask([2, 3], [2, 3], max_tokens=6, end_after=99)
    assert len({client.request.request_id for client in house.clients.values()}) == 1
    house.plan()
    house.abort([0])
    house.finish()
    assert house.clients[0].reason is FinishReason.ABORTED
    assert house.clients[1].got == house.clients[1].expected


def small_core(*, plans_in_flight: int = 2) -> tuple[Scheduler, Plan]:
    """A core with one plan of two prefill rows in flight."""
    core = Scheduler(Limits(plans_in_flight=plans_in_flight))
    core.add_executor(executor_info())
    core.add_requests([Request(key, "r", [2, 3, key], 4) for key in range(2)])
    plan = core.schedule(0)
    assert plan is not None
    return core, plan


GOOD = StepResult(1, token_ids=[7, 8], lengths=[3, 3], num_blocks_in_use=2)


def test_late_and_unknown_results_are_counted_and_dropped():
    core, _ = small_core()
    assert core.update(0, replace(GOOD, step_id=9)).keys == ()
    assert core.update(5, GOOD).keys == ()
    core.update(0, GOOD)
    assert core.update(0, GOOD).keys == ()
    assert core.stats().counters.num_late_results == 3
    core.check_invariants()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_emitted": [2, 1], "token_ids": [7, 8, 9]}, "too many"),
        ({"num_emitted": [0, 1], "token_ids": [8]}, "did not finish"),
        ({"num_emitted": [1], "token_ids": [8]}, "num_emitted has 1"),
        ({"num_emitted": [-1, 1], "token_ids": []}, "negative"),
        ({"token_ids": [7]}, "token_ids has 1"),
        ({"lengths": [3]}, "lengths has 1"),
        ({"lengths": [3, 4]}, "length 4, expected 3"),
        ({"num_blocks_in_use": 3}, "num_blocks_in_use is 3, expected 2"),
        ({"skipped": [0], "num_emitted": [0, 1], "token_ids": [8]}, "skipped although"),
        ({"finished": [(2, FinishReason.STOP)]}, "does not have"),
        ({"finished": [(0, FinishReason.STOP)], "errors": [(0, "internal", "x")]}, "more than one"),
        ({"errors": [(0, "internal", "x")]}, "failed and emitted"),
    ],
)
def test_result_that_contradicts_the_books_is_named_and_not_applied(change, words):
    core, _ = small_core()
    with pytest.raises(ResultMismatch, match=words) as caught:
        core.update(0, replace(GOOD, **change))
    assert (caught.value.executor_id, caught.value.step_id) == (0, 1)
    assert [seq.num_emitted for seq in core.sequences.values()] == [0, 0]
    core.remove_executor(0)
    core.check_invariants()
    assert [seq.key for seq in core.queue] == [0, 1]


def test_results_out_of_order_are_a_mismatch():
    core, _ = small_core()
    assert core.schedule(0) is not None
    with pytest.raises(ResultMismatch, match="step 1 was skipped"):
        core.update(0, replace(GOOD, step_id=2))


def test_row_that_runs_after_its_end_is_a_mismatch():
    core, _ = small_core()
    core.schedule(0)
    core.update(0, replace(GOOD, finished=[(0, FinishReason.STOP)], num_blocks_in_use=1))
    with pytest.raises(ResultMismatch, match="had ended"):
        core.update(0, StepResult(2, token_ids=[7, 8], lengths=[4, 4], num_blocks_in_use=1))


def test_row_that_never_ends_is_a_mismatch():
    core, _ = small_core(plans_in_flight=1)
    core.update(0, GOOD)
    for step, length in ((2, 4), (3, 5)):
        core.schedule(0)
        core.update(0, StepResult(step, token_ids=[7, 8], lengths=[length] * 2, num_blocks_in_use=2 if length == 4 else 4))
    core.schedule(0)
    with pytest.raises(ResultMismatch, match="did not finish"):
        core.update(0, StepResult(4, token_ids=[7, 8], lengths=[6, 6], num_blocks_in_use=4))
