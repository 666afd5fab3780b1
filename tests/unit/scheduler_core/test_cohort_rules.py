"""Upstream's four defects (domain 1.7) are not copied; one plan in flight; a core that was restored keeps its rule."""

from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CacheOp, Limits
from tests.support.cohort_house import BIG, DECODE, FAR, LAST, drain_prompts, house, prompts, turn
from tests.support.core_world import House

NOTHING, IN, RESET = CacheOp.NOTHING, CacheOp.IN, CacheOp.RESET


def test_defect_1_the_bound_holds_even_when_nothing_runs_and_completions_are_never_prompts_again():
    one = house(granted=False, limits={"max_num_seqs": 2})
    one.ask(*prompts(5, 9, 5, 9, 5), max_tokens=4)
    fed = {}
    while one.core.sequences:
        keys, kinds, _ = turn(one)
        assert one.core.stats().num_running <= 2
        for key, kind in zip(keys, kinds, strict=True):
            assert kind == DECODE or key not in fed, "a completion was computed again"
            fed[key] = kind
    assert one.core.counters.num_preemptions == 0


def test_defect_2_a_client_that_left_is_reaped_wherever_its_sequence_stands():
    """Demoted, chosen, or owed: the next plan gives its slot back and never names it again."""
    one = house(granted=False, **BIG)
    one.ask(*prompts(*FAR), max_tokens=60)
    drain_prompts(one)
    demoted = next(key for key in (0, 1, 2) if key not in turn(one)[0])
    slot = one.books.running[demoted].slot
    one.abort([demoted])
    plan = one.plan()
    assert plan.aborted_slots == [slot]
    one.deliver(0)
    assert all(demoted not in turn(one)[0] for _ in range(9))


def test_defect_3_a_prompt_that_hit_a_prefix_runs_like_any_other():
    one = house(limits={"enable_prefix_caching": True})
    one.ask([2] * 9, max_tokens=2)
    one.settle()
    [key] = one.ask([2] * 9, max_tokens=5)
    keys, kinds, op = turn(one)
    assert (keys, kinds, op) == ([key], [LAST], IN), "from the blocks that it hit"
    assert turn(one)[0] == [key]
    one.finish()


def test_defect_4_equal_choices_are_made_the_same_way_every_time():
    def digest():
        one = house(granted=False)
        one.ask(*prompts(8, 8, 4, 4, 4, 16), max_tokens=9)
        one.settle()
        return one.digest.hexdigest()

    assert len({digest() for _ in range(3)}) == 1


def test_only_one_plan_is_ever_in_flight():
    one = house(limits={"plans_in_flight": 4})
    one.ask(*prompts(5, 9))
    one.plan()
    assert not one.send(0)
    assert one.core.policy.plans_in_flight(Limits()) == 1


def test_a_restored_core_goes_on_with_the_same_rule():
    one = house(granted=False)
    one.ask(*prompts(5, 9, 5, 14), max_tokens=9)
    for _ in range(4):
        turn(one)
    one.split()
    assert one.shadow.policy.name == "ragged"
    one.settle()


def test_a_snapshot_of_an_earlier_release_is_restored_as_paged():
    core = House().core
    data = core.snapshot()
    for name in ("admission", "layout", "cadence", "prefill_floor"):
        del data["limits"][name]
    for record in data["executors"]:
        del record["cohort"]
    assert Scheduler.restore(data).policy.name == "paged"
