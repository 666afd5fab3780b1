"""Snapshots: plain data, complete, and a restored core goes on identically (the simulation and the state machine test it too)."""

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import Limits, Request
from tests.support.core_world import House, executor_info


def busy_house(turns: int) -> House:
    house = House(num_blocks=14, block_size=2, limits={"prefill_chunk": 3, "plans_in_flight": 2})
    house.ask(*([2, 2, 2, token] for token in range(3, 9)), max_tokens=9)
    for step in range(turns):
        house.send(0)
        house.send(0)
        house.deliver(0)
        if step == 3:
            house.abort([2])
    return house


@given(turns=st.integers(0, 25))
@settings(max_examples=15, deadline=None)
def test_restored_core_makes_the_same_plans(turns):
    house = busy_house(turns)
    house.split()
    house.ask([2, 2, 2, 9])
    house.finish()


def test_snapshot_is_plain_data_that_survives_msgpack():
    core = Scheduler(Limits())
    core.add_executor(executor_info())
    core.add_requests([Request(key, "r", [2, 3, 4, 5, 6, key], 4, sampling=b"wire bytes") for key in range(3)])
    core.schedule(0)
    core.abort([1])
    core.schedule(0)
    packed = msgpack.packb(core.snapshot())
    again = Scheduler.restore(msgpack.unpackb(packed))
    again.check_invariants()
    assert msgpack.packb(again.snapshot()) == packed


@pytest.mark.parametrize("turns", [1, 3, 6, 9])
def test_what_was_frozen_stays_as_it_was(turns):
    house = busy_house(turns)
    before, frozen = repr(house.core.snapshot()), house.core.freeze()
    for _ in range(12):
        house.send(0)
        house.deliver(0)
    assert repr(house.core.snapshot()) != before
    assert repr(frozen.data()) == repr(frozen.data()) == before


def test_snapshot_says_what_a_replayer_needs_to_rebuild_an_executor():
    house = busy_house(4)
    data = house.core.snapshot()
    for record in data["sequences"]:
        seq = house.core.sequences[record["key"]]
        assert (record["tokens"], record["slot"], record["blocks"]) == (list(seq.tokens), seq.slot, seq.blocks)
    [executor] = data["executors"]
    assert executor["columns"]["confirmed"] == house.books.cols.confirmed.tolist()
    assert {entry["block"] for entry in executor["published"]} >= set(executor["cached"])
    assert all(len(entry["tokens"]) == 2 and len(entry["digest"]) == len(entry["parent"]) == 32 for entry in executor["published"])
    assert [flight["plan"]["step_id"] for flight in executor["in_flight"]] == [plan.step_id for plan in house.nodes[0].plans]
    tables = {slot: state.blocks for slot, state in house.nodes[0].model._slots.items() if not state.ended}
    assert dict(executor["tables"]) == tables, "the executor's tables as of its last result"


def test_snapshot_shares_nothing_with_the_core():
    house = busy_house(3)
    before = msgpack.packb(house.core.snapshot(), default=repr)
    data = house.core.snapshot()
    house.finish()
    assert msgpack.packb(data, default=repr) == before


def test_unknown_version_is_refused():
    data = Scheduler(Limits()).snapshot()
    with pytest.raises(ValueError, match="version 99"):
        Scheduler.restore({**data, "version": 99})
