"""The prefix cache: when blocks can be hit, by whom, and what happens when they were never computed."""

import pytest

from scheduler_svc.core.prefix import PrefixChain, chain_root
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import State
from scheduler_svc.core.types import FinishReason, Limits
from scheduler_svc.sim.model_executor import SimSampling, full_output
from scheduler_svc.sim.world import World
from tests.support.core_world import House, desk_of, executor_info

STEM = list(range(2, 18))
"""Four full blocks."""


def test_block_can_be_hit_by_later_plans_as_soon_as_its_plan_is_sent():
    house = House()
    house.ask([*STEM, 30])
    house.plan()
    house.ask([*STEM, 31])
    plan = house.plan()
    assert plan.based_on_result_step == 0, "no result has come back yet"
    assert house.cached_of(plan) == {1: 16}
    assert plan.block_ids[:4] == house.core.sequences[0].blocks[:4]
    house.finish()


def test_one_new_prefix_of_32_streams_is_computed_once():
    house = House(max_num_seqs=32, num_blocks=400, max_num_batched_tokens=4096, limits={"max_num_batched_tokens": 4096})
    house.ask(*([*STEM, 20 + stream] for stream in range(32)), max_tokens=2)
    first, second = house.plan(), house.plan()
    assert len(first.new_sequences) == 1
    assert house.cached_of(second) == dict.fromkeys(range(1, 32), 16)
    house.finish()
    assert house.nodes[0].model.num_fed == 16 + 32 + 32 - sum(len(client.got) == 1 for client in house.clients.values())


def test_long_prefix_in_chunks_is_computed_once_too():
    house = House(limits={"prefill_chunk": 4})
    house.ask([*STEM, 30], [*STEM, 31], max_tokens=1)
    house.finish()
    assert house.nodes[0].model.num_fed == 17 + 1


def test_unrelated_prompt_does_not_wait_for_the_prefix_of_others():
    house = House()
    house.ask([*STEM, 30], [*STEM, 31], [40, 41])
    assert [new.key for new in house.plan().new_sequences] == [0, 2]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
def test_whole_prompt_is_never_hit(length):
    """At least one token is fed, or nothing could be sampled."""
    house = House()
    house.ask(STEM[:length], max_tokens=1)
    house.finish()
    house.ask(STEM[:length], max_tokens=1)
    assert house.cached_of(house.plan()) == {1: (length - 1) // 4 * 4}
    house.finish()


def test_b061_hit_gives_the_same_tokens_as_miss():
    """Same prompt twice, then the same stem with another question; `World` compares with the undisturbed run."""
    house = House()
    for prompt in ([*STEM, 30, 31], [*STEM, 30, 31], [*STEM, 40]):
        house.ask(prompt, max_tokens=8)
        house.finish()
    assert house.core.counters.prefix_hits == 16 + 16


def test_generated_blocks_can_be_hit_once_confirmed():
    house = House(limits={"plans_in_flight": 3})
    [key] = house.ask([2, 3, 4], max_tokens=12, end_after=99)
    text = [2, 3, 4, *full_output(SimSampling(max_tokens=12, end_after=99), [2, 3, 4])]
    for _ in range(3):
        house.plan()
    assert house.find([*text, 40]) == [], "the block of 3 prompt tokens and one generated is covered, its tokens are unknown"
    house.deliver(0)
    house.deliver(0)
    assert house.find([*text, 40]) == house.core.sequences[key].blocks[:1]
    house.finish()
    house.ask([*text, 40], max_tokens=1)
    assert house.cached_of(house.plan()) == {1: 12}
    house.finish()


def test_prompt_logprobs_request_bypasses_lookup():
    house = House()
    house.ask([*STEM, 30])
    house.finish()
    house.ask([*STEM, 30], prompt_logprobs=True)
    assert house.cached_of(house.plan()) == {1: 0}
    house.finish()


def test_caching_can_be_switched_off():
    house = House(limits={"enable_prefix_caching": False})
    house.ask([*STEM, 30])
    house.finish()
    house.ask([*STEM, 30])
    assert house.cached_of(house.plan()) == {1: 0}
    assert len(house.books.kv.index) == 0
    house.finish()


@pytest.mark.parametrize(
    ("first", "second", "hit"),
    [
        ({}, {}, 16),
        ({"tenant": "X"}, {"tenant": "X"}, 16),
        ({"tenant": "X"}, {"tenant": "Y"}, 0),
        ({"tenant": "X"}, {"salt": "X"}, 0),
        ({"tenant": "X", "salt": "Y"}, {"tenant": "XY"}, 0),
        ({"salt": "X"}, {}, 0),
    ],
)
def test_b063_tenant_and_salt_are_tagged_fields(first, second, hit):
    house = House()
    house.ask([*STEM, 30], **first)
    house.finish()
    house.ask([*STEM, 30], **second)
    assert house.cached_of(house.plan()) == {1: hit}


def test_chain_is_salted_by_the_model_and_the_block_size():
    fields = {"model_digest": "m", "tenant": "t", "cache_salt": "s", "block_size": 4}
    roots = [
        chain_root(**{**fields, **change})
        for change in ({}, {"model_digest": "n"}, {"block_size": 8}, {"model_digest": "mt", "tenant": ""})
    ]
    assert len(set(roots)) == 4
    chain = PrefixChain(roots[0], block_size=4)
    chain.extend([1, 2, 3, 4, 1, 2, 3, 4], 2)
    assert chain.digests[0] != chain.digests[1], "the same tokens behind another prefix are another block"


def test_b062_colliding_fingerprints_never_share_blocks():
    """With a one-byte fingerprint 500 prompts collide all the time; tokens are compared, and `World` checks every row's prefix."""
    limits = Limits(max_num_seqs=8, max_waiting_requests=500)
    world = World(limits, core=Scheduler(limits, fingerprint=lambda digest: digest[:1]))
    world.join(executor_info(num_blocks=40))
    for value in range(500):
        prompt = [2 + value % 40, 2 + value // 40, 5, 6, 7, 8, 9, 10, value % 7 + 2]
        assert world.submit([prompt], SimSampling(max_tokens=2)) is None
        if value % 8 == 7:
            world.settle()
    world.settle()
    world.check_idle()


def failing_owner() -> House:
    """Sequence 0 computes a stem in step 1, sequence 1 hits it in step 2; step 1 will fail."""
    house = House(limits={"plans_in_flight": 3}, fails={(1, 0)})
    house.ask([*STEM, 30], [*STEM, 31], max_tokens=6)
    house.plan()
    assert house.cached_of(house.plan()) == {1: 16}
    return house


def test_failed_row_unpublishes_and_readers_are_computed_again():
    house = failing_owner()
    house.deliver(0)
    assert house.clients[0].reason is FinishReason.ERROR
    assert len(house.books.kv.index) == 0
    assert house.core.sequences[1].state is State.DISCARDING
    house.finish()
    assert house.clients[1].got == house.clients[1].expected
    assert house.core.counters.num_recomputed == 1


def test_reader_of_a_reader_is_computed_again_too():
    house = failing_owner()
    house.ask([*STEM, 31, 32, 33, 34, 35], max_tokens=6)
    house.ask([*STEM, 31, 32, 33, 36, 37], max_tokens=6)
    assert len(house.plan().new_sequences) == 2
    house.deliver(0)
    assert {house.core.sequences[key].state for key in (1, 2, 3)} == {State.DISCARDING}
    house.finish()
    assert house.core.counters.num_recomputed == 3


def test_reader_may_be_aborted_while_it_is_discarded():
    house = failing_owner()
    house.deliver(0)
    house.abort([1])
    house.finish()
    assert house.clients[1].reason is FinishReason.ABORTED


def test_blocks_computed_before_the_failure_stay_published():
    house = House(limits={"prefill_chunk": 8, "plans_in_flight": 1}, fails={(2, 0)})
    house.ask([*STEM, 30], max_tokens=2)
    house.plan()
    house.deliver(0)
    house.plan()
    house.deliver(0)
    assert house.clients[0].reason is FinishReason.ERROR
    assert len(house.books.kv.index) == 2
    house.ask([*STEM, 30], max_tokens=2)
    assert house.cached_of(house.plan()) == {1: 8}
    house.finish()


def test_aborted_owner_that_is_skipped_unpublishes():
    """The abort reaches the executor while the computing plan still waits there: its row is skipped."""
    house = House(limits={"plans_in_flight": 3})
    house.ask([*STEM, 30], [*STEM, 31], max_tokens=6)
    house.plan()
    house.plan()
    house.abort([0])
    assert house.plan().aborted_slots == [0]
    house.deliver(0)
    assert house.core.sequences[1].state is State.DISCARDING
    house.finish()
    assert house.clients[1].got == house.clients[1].expected


def test_aborted_owner_that_ran_leaves_its_blocks_to_be_hit():
    house = House()
    house.ask([*STEM, 30], [*STEM, 31], max_tokens=6)
    house.plan()
    house.plan()
    house.abort([0])
    house.deliver(0)
    assert house.core.sequences[1].state is State.RUNNING
    house.finish()
    assert house.core.counters.num_recomputed == 0


def test_least_recently_used_prefix_goes_first_and_its_tail_before_its_head():
    house = House(num_blocks=12, limits={"plans_in_flight": 1})
    recent, old = [2] * 16, [3] * 16
    for stem in (recent, old, recent, [9] * 20):
        house.ask([*stem, 30], max_tokens=1)
        house.finish()
    for stem, cached in ((recent, 16), (old, 8)):
        [key] = house.ask([*stem, 31], max_tokens=1)
        assert house.cached_of(house.plan()) == {key: cached}
        house.finish()


def _long_output(house: House, prompt: list[int]) -> list[int]:
    """One sequence decodes for a while; returns what it has confirmed, as a prompt that goes on from there."""
    [key] = house.ask(prompt, max_tokens=60, end_after=99)
    for _ in range(20):
        while house.send(0):
            pass
        house.deliver(0)
    while house.deliver(0):
        pass
    length = house.books.cols.confirmed_of(house.core.sequences[key].slot)
    return [*prompt, *full_output(SimSampling(max_tokens=60, end_after=99), prompt)][:length]


def test_a_recording_that_begins_before_a_hit_on_generated_blocks_knows_that_they_can_be_hit():
    """A snapshot is taken at a TICK, so the first plan behind it may hit blocks that the core has not named yet."""
    house = House()
    house.ask([*_long_output(house, [2, 3, 4, 5]), 9], max_tokens=2)
    desk = desk_of(house)
    plan = house.plan()
    hit = house.core.sequences[1].blocks[: plan.new_sequences[0].num_cached_tokens // 4]
    assert len(hit) >= 4
    assert set(hit) <= desk.unjudged


def test_a_snapshot_names_what_a_withdrawn_sequence_will_leave():
    """It is not rebuilt from the snapshot as a resident, so whoever hits its blocks later must find them among the published."""
    house = House()
    text = _long_output(house, [2, 3, 4, 5])
    while house.send(0):
        pass
    blocks = house.core.sequences[0].blocks[: len(text) // 4]
    house.abort([0])
    [executor] = house.core.snapshot()["executors"]
    assert {entry["block"] for entry in executor["published"]} >= set(blocks)
    house.finish()
    house.ask([*text, 9], max_tokens=1)
    assert house.cached_of(house.plan()) == {1: len(blocks) * 4}


def test_a_newcomer_that_shares_nothing_names_one_block_of_each_resident_once():
    house = House(num_blocks=400)
    house.ask([2, 7, 8], [3, 7, 8], [4, 7, 8], max_tokens=60, end_after=99)
    for _ in range(20):
        house.send(0)
        house.deliver(0)
    assert len(house.books.kv.index) == 0
    for last in (30, 31):
        assert house.find([40, 41, 42, 43, *range(2, 34), last]) == []
        assert len(house.books.kv.index) == 3
