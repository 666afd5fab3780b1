"""The waiting queue, deadlines and refusals."""

import pytest

from scheduler_svc.core.deadlines import Deadlines
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import FinishReason, Limits, Request
from scheduler_svc.sim.model_executor import SimSampling
from scheduler_svc.sim.world import World
from tests.support.core_world import House, executor_info


def test_b081_queue_is_bounded_in_requests():
    house = House(limits={"max_waiting_requests": 3})
    house.ask([2], [3], [4])
    refusal = house.submit([[5]], SimSampling())
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("overloaded", 1)
    house.send(0)
    house.ask([5])
    house.finish()
    assert house.core.stats().counters.num_refused == 1


def test_b081_queue_is_bounded_in_tokens():
    house = House(limits={"max_waiting_tokens": 10})
    house.ask([2] * 8)
    refusal = house.submit([[3] * 3], SimSampling())
    assert refusal is not None
    assert refusal.code == "overloaded"
    assert refusal.retry_after_s > 0
    house.ask([3] * 2)


def test_b026_huge_list_of_prompts_is_refused_whole_and_not_to_be_retried():
    house = House(limits={"max_waiting_requests": 100})
    refusal = house.submit([[2]] * 101, SimSampling())
    assert refusal is not None
    assert refusal.code == "invalid_request"
    assert not len(house.core.queue)


def test_arrival_is_admitted_whole_or_not_at_all():
    house = House(max_model_len=20)
    assert house.submit([[2], [2] * 30], SimSampling()) is not None
    assert not house.core.sequences


def test_requeued_sequences_do_not_count_against_admission():
    house = House(limits={"max_waiting_requests": 2})
    house.ask([2], [3], max_tokens=9, end_after=99)
    house.send(0)
    house.kill(0)
    assert len(house.core.queue) == 2
    house.ask([4], [5])
    house.join(executor_info())
    house.finish()


@pytest.mark.parametrize(("prompt", "max_tokens", "scoring"), [([], 4, False), ([2], 0, False), ([2], -1, True)])
def test_senseless_request_is_refused(prompt, max_tokens, scoring):
    core = Scheduler(Limits())
    refusal = core.add_requests([Request(0, "r", prompt, max_tokens, prompt_logprobs=scoring)])
    assert refusal is not None
    assert refusal.code == "invalid_request"


def test_key_in_use_is_a_defect_of_the_shell():
    core = Scheduler(Limits())
    core.add_requests([Request(0, "r", [2], 4)])
    with pytest.raises(ValueError, match="in use"):
        core.add_requests([Request(0, "r", [2], 4)])


def test_b090_expired_queue_entry_never_starts():
    house = House(limits={"max_num_seqs": 1})
    house.ask([2], max_tokens=9, end_after=99)
    house.ask([3], timeout_ns=5)
    house.plan()
    house.now_ns += 5
    house.finish()
    assert house.clients[1].reason is FinishReason.DEADLINE
    assert (house.clients[1].got, house.clients[1].num_started) == ([], 0)


def test_b090_running_sequence_stops_at_its_deadline():
    house = House()
    house.ask([2], max_tokens=100, end_after=199, timeout_ns=50)
    for _ in range(5):
        house.send(0)
        house.deliver(0)
    house.now_ns += 50
    out = house.core.tick(house.now_ns)
    assert out.finished == [(0, FinishReason.DEADLINE)]
    assert out.errors[0][:2] == (0, "deadline_exceeded")
    plan = house.core.schedule(0)
    assert plan is not None
    assert (plan.aborted_slots, plan.slots) == ([0], [])


def test_b059_hundred_thousand_cancels_leave_nothing_behind():
    core = Scheduler(Limits())
    core.add_executor(executor_info())
    for key in range(20_000):
        core.add_requests([Request(key, "r", [2], 4, deadline_ns=10**12 + key)])
        core.abort([key, key + 1_000_000])
        if key % 100 == 0:
            core.tick(key)
    core.tick(1)
    assert not core.sequences
    assert not len(core.queue)
    assert len(core.deadlines) <= 64
    assert core.counters.num_unknown_aborts == 20_000


def test_deadlines_end_in_order_and_ties_in_key_order():
    deadlines = Deadlines()
    for deadline, key in ((5, 3), (4, 9), (5, 1), (0, 7), (6, 2)):
        deadlines.add(deadline, key)
    assert deadlines.expired(5, alive={1: 0, 3: 0, 9: 0, 2: 0}) == [9, 1, 3]
    assert deadlines.expired(5, alive={2: 0}) == []


def test_arrivals_are_served_in_order():
    house = House(limits={"max_num_seqs": 1})
    house.ask([2], [3], [4], max_tokens=1)
    order = []
    for _ in range(40):
        if house.send(0):
            order += [new.key for new in house.books.in_flight[-1].plan.new_sequences]
        house.deliver(0)
    assert order == [0, 1, 2]


def test_without_an_executor_everything_waits():
    world = World(Limits())
    assert world.submit([[2] * 1000], SimSampling()) is None
    assert world.submit([[2] * 5], SimSampling()) is None
    world.join(executor_info())
    world.settle()
    world.check_idle()
    assert world.clients[0].reason is FinishReason.ERROR, "no executor that has joined can hold it"
    assert world.clients[1].got == world.clients[1].expected
