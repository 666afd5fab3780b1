"""Blocks: what a row holds, what happens when they run out, what can never fit."""

import pytest

from scheduler_svc.core.blocks import BlockPool
from scheduler_svc.core.errors import InvariantViolation
from scheduler_svc.core.sequence import State
from scheduler_svc.core.types import FinishReason
from scheduler_svc.sim.model_executor import SimSampling
from tests.support.core_world import House


def test_blocks_always_cover_the_upper_length():
    """Two decode plans in flight: blocks for both tokens are held before either is known."""
    house = House(block_size=1, limits={"plans_in_flight": 3})
    house.ask([2, 3], max_tokens=9)
    for upper in (2, 3, 4):
        house.plan()
        seq = house.core.sequences[0]
        assert int(house.books.cols.upper[seq.slot]) == upper == len(seq.blocks)
    assert int(house.books.cols.confirmed[seq.slot]) == 0


def test_surplus_blocks_stay_until_the_row_ends():
    house = House(block_size=1, limits={"plans_in_flight": 3})
    house.ask([2, 3], max_tokens=9, end_after=1)
    for _ in range(3):
        house.plan()
    assert house.books.kv.pool.num_held == 4
    house.deliver(0)
    assert house.books.kv.pool.num_held == 0, "rows in flight are skipped, so blocks return with the result that ended the row"
    house.finish()


def test_b056_idle_accounting_is_exact_after_one_short_request():
    house = House()
    house.ask([2, 3, 4, 5, 6], max_tokens=1)
    house.finish()
    pool = house.books.kv.pool
    assert sorted([*pool.empty, *pool.cached]) == list(range(pool.num_blocks))
    with pytest.raises(InvariantViolation, match="released twice"):
        pool.drop(0, keep=False)


def test_b033_prompt_that_fits_the_model_but_not_the_pool_is_refused_at_once():
    house = House(num_blocks=16, max_model_len=4096, limits={"max_num_batched_tokens": 64})
    refusal = house.submit([[2] * 100], SimSampling(max_tokens=4))
    assert refusal is not None
    assert refusal.code == "context_length_exceeded"
    assert "64" in refusal.message
    house.ask(*([token] * 3 for token in range(2, 7)))
    house.finish()


@pytest.mark.parametrize(("prompt", "max_tokens", "admitted"), [(60, 5, True), (60, 6, False), (64, 1, True), (65, 1, False)])
def test_fit_counts_the_tokens_that_need_memory(prompt, max_tokens, admitted):
    """The last emitted token is never fed: 64 tokens of memory hold a prompt of 60 and 5 tokens to emit."""
    house = House(num_blocks=16, block_size=4)
    assert (house.submit([[2] * prompt], SimSampling(max_tokens=max_tokens, end_after=99)) is None) == admitted
    house.finish()


def test_prompt_plus_max_tokens_beyond_the_model_is_refused():
    house = House(max_model_len=20)
    assert house.submit([[2] * 10], SimSampling(max_tokens=10)) is None
    refusal = house.submit([[2] * 11], SimSampling(max_tokens=10))
    assert refusal is not None
    assert refusal.code == "context_length_exceeded"


def tight(**limits: object) -> House:
    """Two sequences of 4 prompt tokens that may grow to 12 each, in memory for 15."""
    house = House(num_blocks=15, block_size=1, limits=limits)
    house.ask([2, 2, 3, 4], [3, 2, 3, 4], max_tokens=9, end_after=99)
    return house


def until_preempting(house: House, key: int):
    """Runs with a full pipeline until sequence `key` is PREEMPTING."""
    for _ in range(50):
        while house.send(0):
            if house.core.sequences[key].state is State.PREEMPTING:
                return house.core.sequences[key]
        house.deliver(0)
    raise AssertionError("never preempted")


def test_victim_is_the_last_in_order_and_its_tokens_in_flight_count():
    house = tight(enable_prefix_caching=False)
    victim = until_preempting(house, 1)
    assert house.core.sequences[0].state is State.RUNNING
    before = len(victim.tokens)
    assert victim.blocks, "blocks return with its last result"
    while victim.state is State.PREEMPTING:
        assert house.deliver(0)
    assert len(victim.tokens) > before, "its tokens in flight were delivered"
    assert victim.state is State.WAITING
    assert victim.blocks == []
    house.finish()
    assert house.core.counters.num_preemptions >= 1


def test_preemption_that_lets_nothing_run_is_not_begun():
    """Memory for 14 is full when both need a block: nothing can be sent, so nothing changes until the results are in."""
    house = House(num_blocks=14, block_size=1, limits={"enable_prefix_caching": False})
    house.ask([2, 2, 3, 4], [3, 2, 3, 4], max_tokens=9, end_after=99)
    seen = set()
    for _ in range(30):
        while house.send(0):
            pass
        seen |= {seq.state for seq in house.core.sequences.values()}
        house.deliver(0)
    assert State.PREEMPTING not in seen
    assert house.core.counters.num_preemptions == 1
    house.finish()


def test_preempted_sequence_has_no_new_rows():
    house = tight(enable_prefix_caching=False)
    victim = until_preempting(house, 1)
    slot = victim.slot
    while victim.state is State.PREEMPTING:
        house.deliver(0)
        if house.send(0) and victim.state is State.PREEMPTING:
            assert slot not in house.books.in_flight[-1].rows.slots
    house.finish()


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_b065_preempted_output_equals_the_undisturbed_run(depth, caching):
    """Repeated preemption, of several sequences; `World` compares every token."""
    house = House(num_blocks=9, block_size=2, limits={"plans_in_flight": depth, "enable_prefix_caching": caching})
    house.ask(*([token, 2, 3] for token in range(4, 12)), max_tokens=12, end_after=99)
    house.finish()
    assert house.core.counters.num_preemptions >= 3
    assert all(client.reason is FinishReason.LENGTH for client in house.clients.values())


def test_b065_preempted_before_its_first_token():
    house = House(num_blocks=12, block_size=1, limits={"prefill_chunk": 2, "enable_prefix_caching": False})
    house.ask([2, 3], max_tokens=10, end_after=99)
    house.send(0)
    house.ask([4] * 8, max_tokens=2, end_after=99)
    house.finish()
    assert house.core.counters.num_preemptions >= 1


def test_resumed_goes_before_new_arrivals():
    house = tight(enable_prefix_caching=False)
    victim = until_preempting(house, 1)
    while victim.state is State.PREEMPTING:
        house.deliver(0)
    house.ask([5])
    assert [seq.key for seq in house.core.queue] == [1, 2]
    house.finish()


def test_preempted_blocks_are_hit_again_when_nobody_took_them():
    house = House(num_blocks=14, block_size=2)
    house.ask([2, 2, 3, 4], [3, 2, 3, 4], [4, 2, 3, 4], max_tokens=9, end_after=99)
    house.finish()
    assert house.core.counters.num_preemptions > 0
    assert house.core.counters.prefix_hits > 0


def test_oldest_always_finishes():
    """However many younger ones crowd it, the oldest is never preempted."""
    house = House(num_blocks=10, block_size=2)
    house.ask(*([token, 2] for token in range(2, 20)), max_tokens=16, end_after=99)
    oldest = house.core.sequences[0]
    for _ in range(200):
        house.send(0)
        assert oldest.state is not State.PREEMPTING
        house.deliver(0)
        if oldest.state is State.ENDED:
            break
    assert oldest.state is State.ENDED
    assert oldest.num_placements == 1
    house.finish()


def test_pool_hands_out_empty_blocks_first_then_the_least_recently_cached():
    pool = BlockPool(4)
    blocks, evicted = pool.pop(4)
    assert (blocks, evicted) == ([0, 1, 2, 3], [])
    pool.drop(2, keep=True)
    pool.drop(0, keep=True)
    pool.drop(3, keep=False)
    assert pool.num_available == 3
    assert pool.pop(2) == ([3, 2], [2])
    pool.hold([0])
    assert pool.num_available == 0
    with pytest.raises(InvariantViolation):
        pool.drop(1, keep=False) or pool.hold([1])


def test_admission_waits_for_blocks_that_residents_still_need():
    """A long prompt in chunks keeps its blocks promised; a newcomer does not squeeze in and get preempted."""
    house = House(num_blocks=12, block_size=1, limits={"prefill_chunk": 2, "plans_in_flight": 1})
    house.ask([2] * 9, max_tokens=2)
    house.ask([3] * 5, max_tokens=2)
    house.plan()
    assert [seq.key for seq in house.core.queue] == [1]
    house.finish()
    assert house.core.counters.num_preemptions == 0
