"""Several executors in one core: placement, draining, loss."""

import pytest

from scheduler_svc.core.types import FinishReason
from scheduler_svc.sim.model_executor import SimSampling
from tests.support.core_world import House, executor_info

STEM = list(range(2, 18))


def turn(house: House) -> None:
    """Every executor gets plans until its pipeline is full, then every oldest plan returns."""
    for executor_id in list(house.nodes):
        while house.send(executor_id):
            pass
    for executor_id in list(house.nodes):
        house.deliver(executor_id)


def home(house: House, key: int) -> int:
    return house.core.sequences[key].executor_id


def test_load_then_id_decide_without_a_prefix():
    house = House()
    house.join(executor_info())
    house.ask(*([token, token] for token in range(2, 8)), max_tokens=30, end_after=99)
    turn(house)
    assert [home(house, key) for key in range(6)] == [0, 1, 0, 1, 0, 1], "a burst is shared out at once"
    house.finish()


def test_longest_cached_prefix_wins_when_loads_are_alike():
    house = House()
    other = house.join(executor_info())
    house.ask([*STEM, 30], max_tokens=30, end_after=99)
    house.ask([40, 41], max_tokens=30, end_after=99)
    turn(house)
    assert (home(house, 0), home(house, 1)) == (0, other)
    house.ask([*STEM, 31], max_tokens=5)
    house.finish()
    assert house.core.counters.prefix_hits == 16


def test_load_outweighs_a_short_prefix():
    house = House(max_num_seqs=16, num_blocks=200)
    other = house.join(executor_info(max_num_seqs=16, num_blocks=200))
    house.drain(other)
    house.ask(*([*STEM, token] for token in range(30, 38)), max_tokens=60, end_after=99)
    turn(house)
    turn(house)
    third = house.join(executor_info())
    [key] = house.ask([*STEM, 40], max_tokens=60, end_after=99)
    turn(house)
    assert home(house, key) == third


def test_executor_that_joins_later_gets_rows():
    house = House(limits={"max_num_seqs": 2})
    house.ask(*([token, token] for token in range(2, 8)), max_tokens=20, end_after=99)
    turn(house)
    late = house.join(executor_info())
    turn(house)
    assert [home(house, key) for key in (2, 3)] == [late, late]
    house.finish()


def test_drained_executor_finishes_its_rows_and_gets_nothing_new():
    house = House()
    house.ask([2, 3], max_tokens=9, end_after=99)
    turn(house)
    house.drain(0)
    [key] = house.ask([4, 5])
    for _ in range(20):
        turn(house)
    assert house.clients[0].got == house.clients[0].expected
    assert house.clients[key].reason is None
    assert house.books.num_resident == 0
    assert house.core.stats().executors[0].draining
    house.join(executor_info())
    house.finish()


def test_lost_rows_wait_in_front_in_order_with_their_tokens():
    house = House()
    house.ask([2, 3], [4, 5], max_tokens=20, end_after=99)
    for _ in range(6):
        turn(house)
    house.ask([6, 7])
    house.kill(0)
    assert [seq.key for seq in house.core.queue] == [0, 1, 2]
    emitted = [list(house.clients[key].got) for key in (0, 1)]
    assert all(emitted)
    new = house.join(executor_info())
    plan = house.plan(new)
    assert [entry.token_ids for entry in plan.new_sequences[:2]] == [[2, 3, *emitted[0]], [4, 5, *emitted[1]]]
    assert [entry.num_prompt_tokens for entry in plan.new_sequences] == [2, 2, 2]
    house.finish()


def test_b092_max_tokens_counts_over_the_whole_life():
    house = House()
    house.ask([2, 3], max_tokens=50, end_after=99)
    while len(house.clients[0].got) < 20:
        turn(house)
    house.kill(0)
    house.join(executor_info())
    house.finish()
    assert len(house.clients[0].got) == 50
    assert house.core.counters.num_prompt_tokens == 2, "usage counts the prompt once"


def crash_the_home_of(house: House, key: int) -> None:
    """An executor joins, gets the sequence, and dies with a row of it in flight."""
    new = house.join(executor_info())
    assert house.send(new)
    assert home(house, key) == new
    house.kill(new)


@pytest.mark.parametrize("max_moves", [1, 3])
def test_sequence_that_ran_on_every_executor_that_died_ends_by_name(max_moves):
    """Without the bound one poison sequence takes every executor that it comes to, with everybody's rows, for ever."""
    house = House(limits={"max_moves": max_moves})
    house.kill(0)
    [key] = house.ask([2, 3], max_tokens=20, end_after=99)
    for crash in range(max_moves):
        assert house.clients[key].reason is None, f"ended after {crash} crashes"
        crash_the_home_of(house, key)
    assert house.clients[key].reason is FinishReason.ERROR
    assert house.clients[key].error == ("internal", f"request 'sim' was running on {max_moves} executors when they were lost")
    assert not house.core.sequences
    house.join(executor_info())
    house.finish()


def test_loss_counts_only_with_rows_in_flight_and_not_on_a_draining_executor():
    house = House(limits={"max_moves": 1, "plans_in_flight": 1})
    [key] = house.ask([2, 3], max_tokens=20, end_after=99)
    house.send(0)
    house.deliver(0)
    house.kill(0)  # it had a slot there, and nothing of it was running
    second = house.join(executor_info())
    house.send(second)
    house.drain(second)
    house.kill(second)  # as announced: a restart of everything is nobody's fault
    house.join(executor_info())
    house.finish()
    assert house.clients[key].got == house.clients[key].expected


def test_prompt_logprobs_go_on_where_they_stopped():
    house = House(limits={"prefill_chunk": 3})
    house.ask(list(range(2, 14)), max_tokens=2, prompt_logprobs=True)
    turn(house)
    turn(house)
    done = len(house.clients[0].prompt_logprobs)
    assert done == 6
    house.kill(0)
    new = house.join(executor_info())
    assert house.plan(new).new_sequences[0].num_prompt_logprobs_done == done
    house.finish()
    assert house.clients[0].prompt_logprobs == list(range(1, 12))


@pytest.mark.parametrize("turns", range(6))
def test_executor_dies_at_any_moment(turns):
    house = House(limits={"plans_in_flight": 3, "prefill_chunk": 4})
    other = house.join(executor_info(num_blocks=20))
    house.ask(*([*STEM[:6], token] for token in range(2, 10)), max_tokens=9)
    for _ in range(turns):
        turn(house)
    house.kill(0)
    house.finish()
    assert list(house.core.executors) == [other]


def test_what_no_remaining_executor_can_hold_ends_with_an_honest_error():
    house = House(num_blocks=64)
    house.join(executor_info(num_blocks=4))
    house.ask([2] * 30, [3] * 5, max_tokens=9, end_after=99)
    turn(house)
    house.kill(0)
    assert house.clients[0].reason is FinishReason.ERROR
    house.finish()
    assert house.clients[1].got == house.clients[1].expected


def test_drain_of_the_only_one_that_can_hold_it_is_an_honest_error_too():
    house = House(num_blocks=64, limits={"max_num_seqs": 1})
    house.join(executor_info(num_blocks=4))
    house.ask([4] * 30, max_tokens=9, end_after=99)
    house.plan()
    house.ask([2] * 30, max_tokens=9)
    house.drain(0)
    house.finish()
    assert house.clients[0].reason is FinishReason.LENGTH
    assert house.clients[1].reason is FinishReason.ERROR


def test_big_sequence_waits_for_the_executor_that_can_hold_it():
    house = House(num_blocks=4)
    big = house.join(executor_info(num_blocks=64, max_num_seqs=1))
    house.ask([2] * 30, max_tokens=9, end_after=99)
    house.ask([3] * 30, max_tokens=9, end_after=99)
    house.ask([4] * 5, max_tokens=3)
    turn(house)
    assert home(house, 0) == big
    assert home(house, 2) == 0, "the second big one does not hold up who fits elsewhere"
    house.finish()


def test_executor_id_is_never_used_twice():
    house = House()
    with pytest.raises(ValueError, match="has joined before"):
        house.core.add_executor(executor_info())


def test_unknown_executor_is_no_error():
    house = House()
    assert house.core.schedule(7) is None
    assert house.core.remove_executor(7).keys == ()
    house.core.drain_executor(7)


def test_stats_are_plain_and_add_up():
    house = House()
    house.ask([2, 3], [4, 5], max_tokens=9, end_after=99)
    turn(house)
    house.submit([[6]], SimSampling())
    stats = house.core.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_waiting_tokens) == (2, 1, 1)
    assert stats.counters.num_prompt_tokens == 4
    [one] = stats.executors
    assert (one.num_resident, one.plans_in_flight, one.num_blocks) == (2, 1, 64)
    assert one.num_blocks_used == house.books.kv.pool.num_held
    assert stats.counters is not house.core.counters
