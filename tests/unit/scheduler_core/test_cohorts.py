"""The bucketed and the ragged rule through the public scheduler: rows A1, A13 to A15, B1, B10, B11 and domain 1.7."""

from dataclasses import replace

import pytest

from scheduler_svc import wire
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import Advance, CacheOp, Layout, Limits, RowKind
from tests.support.core_world import House

NOTHING, IN, RESET = CacheOp.NOTHING, CacheOp.IN, CacheOp.RESET
PREFILL, LAST, DECODE = (int(kind) for kind in (RowKind.PREFILL, RowKind.PREFILL_LAST, RowKind.DECODE))


FAR = (5, 305, 605)
"""Cached lengths that the coalescence override does not bring together."""
BIG = {"max_model_len": 2000, "num_blocks": 1200, "max_num_batched_tokens": 1000}


def house(*, admission="ragged", layout="aligned", granted=True, limits=None, **info):
    told = {
        "max_num_batched_tokens": 1000,
        "admission": admission,
        "layout": layout,
        "enable_prefix_caching": False,
        **(limits or {}),
    }
    return House(limits=told, ragged_granted=granted, ragged_reason="told so", **info)


def prompts(*lengths, first=2):
    return [[first + index] * length for index, length in enumerate(lengths)]


def rows_of(one, plan):
    """Keys and kinds of the rows just planned."""
    flight = one.books.in_flight[-1]
    assert flight.plan is plan
    return flight.rows.keys, flight.rows.kinds()


def turn(one):
    """One plan and its result: keys, kinds, cache_op."""
    plan = one.plan()
    keys, kinds = rows_of(one, plan)
    one.deliver(0)
    return keys, kinds, plan.cache_op


def drain_prompts(one):
    """Steps until every resident decodes."""
    while one.books.prefilling or len(one.core.queue):
        turn(one)


# A1, A14


def test_a14_the_grant_reaches_the_bucketer_and_all_lengths_decode_together():
    """So far apart that the override cannot have brought them together."""
    one = house(granted=True, **BIG)
    one.ask(*prompts(*FAR), max_tokens=20)
    drain_prompts(one)
    assert turn(one)[0] == [0, 1, 2]


def test_a1_refused_one_length_runs_and_the_others_sit_idle_in_memory():
    one = house(granted=False, **BIG)
    one.ask(*prompts(*FAR), max_tokens=60)
    drain_prompts(one)
    assert len(turn(one)[0]) == 1
    stats = one.core.stats()
    assert (stats.num_running, stats.num_waiting) == (3, 0), "A15: admitted and resident"
    counters = stats.counters
    assert counters.num_rows_chosen < counters.num_rows_offered


def test_a15_admitted_resident_scheduled_and_waiting_are_told_apart():
    one = house(granted=False, limits={"max_num_seqs": 3}, **BIG)
    one.ask(*prompts(*FAR, 20), max_tokens=60)
    while one.core.stats().num_running < 3:
        turn(one)
    one.plan()
    stats = one.core.stats()
    assert (len(one.core.sequences), stats.num_running, stats.num_scheduled, stats.num_waiting) == (4, 3, 1, 1)


def test_a1_offered_chosen_and_buckets_are_counted():
    one = house(granted=False)
    one.ask(*prompts(5, 9), max_tokens=60)
    one.plan()
    counters = one.core.counters
    assert (counters.num_decisions, counters.num_buckets, counters.num_rows_offered, counters.num_rows_chosen) == (1, 2, 2, 1)


# prompts


def test_prompts_of_one_length_share_a_step_whole_and_others_wait():
    one = house()
    one.ask(*prompts(9, 5, 9, 9))
    plan = one.plan()
    assert rows_of(one, plan)[0] == [1], "the shortest first when nothing runs yet"
    one.deliver(0)
    one.abort([1])
    plan = one.plan()
    assert (rows_of(one, plan)[0], plan.num_tokens, plan.starts) == ([0, 2, 3], [9, 9, 9], [0, 0, 0])


def test_prompts_never_fold_into_a_ragged_cohort():
    one = house()
    one.ask(*prompts(5, 6), max_tokens=9)
    drain_prompts(one)
    one.ask([9] * 6)
    while True:
        keys, kinds, _ = turn(one)
        assert set(kinds) in ({DECODE}, {LAST}), "never in one step"
        if 2 in keys:
            break
    assert kinds == [LAST]


def test_a_bucket_with_completions_and_prompts_is_two_plans_and_nothing_is_decided_in_between():
    """A completion with 5 cached tokens and a prompt of 6 have one key when refused."""
    one = house(granted=False)
    one.ask([2] * 5, max_tokens=9)
    turn(one)
    one.ask([3] * 6, max_tokens=9)
    plan = one.plan()
    assert rows_of(one, plan) == ([0], [DECODE])
    assert one.books.cohort.owed == [1]
    decisions = one.core.counters.num_decisions
    one.ask([4] * 2, max_tokens=9)  # would be the shortest bucket
    one.deliver(0)
    plan = one.plan()
    assert rows_of(one, plan) == ([1], [LAST])
    assert one.core.counters.num_decisions == decisions


def test_an_owed_prompt_that_was_withdrawn_is_forgotten():
    one = house(granted=False)
    one.ask([2] * 5, max_tokens=9)
    turn(one)
    one.ask([3] * 6, max_tokens=9)
    one.plan()
    one.abort([1])
    one.deliver(0)
    assert rows_of(one, one.plan()) == ([0], [DECODE])
    one.finish()


def test_a_prompt_longer_than_the_budget_goes_alone_in_chunks():
    one = house(max_num_batched_tokens=8)
    one.ask([2] * 19, [3] * 19, max_tokens=2)
    seen = []
    while one.core.sequences:
        plan = one.plan()
        seen.append((*rows_of(one, plan), plan.num_tokens, plan.cache_op))
        one.deliver(0)
    chunks = [(keys, kinds, counts, op) for keys, kinds, counts, op in seen if kinds[0] != DECODE]
    for key in (0, 1):
        mine = [(kinds[0], counts[0], op) for keys, kinds, counts, op in chunks if key in keys]
        assert mine == [(PREFILL, 8, RESET), (PREFILL, 8, IN), (LAST, 3, IN)]
    assert all(len(keys) == 1 for keys, kinds, _, _ in chunks if kinds[0] == PREFILL)


def test_a_prefix_hit_keeps_its_offset_in_the_key():
    """domain 7.13: rows that begin at different places never share a prompt step, however long they are."""
    one = house(limits={"enable_prefix_caching": True})
    one.ask([2] * 9, max_tokens=1)
    turn(one)
    one.ask([2] * 9, [5] * 9, max_tokens=1)
    plan = one.plan()
    assert len(plan.starts) == 1
    one.finish()


# B1, B10


def test_b1_reset_for_prompts_in_on_change_nothing_in_between():
    one = house(layout="aligned", granted=True)
    one.ask(*prompts(5, 5), max_tokens=3)
    one.ask([9] * 5, max_tokens=6)
    seen = []
    while one.core.sequences:
        seen.append(turn(one))
    assert [op for _, _, op in seen] == [RESET, IN, NOTHING, IN, NOTHING, NOTHING]
    assert [len(keys) for keys, _, _ in seen] == [3, 3, 3, 1, 1, 1]


def test_b1_stripped_rows_are_assembled_in_every_decode_step():
    one = house(layout="stripped", granted=True)
    one.ask(*prompts(5, 5), max_tokens=4)
    assert [turn(one)[2] for _ in range(4)] == [RESET, IN, IN, IN]


def test_b1_a_prompt_in_between_ends_the_batched_cache_though_the_same_rows_go_on():
    """RESET drops it: NOTHING after that would have nothing to go on."""
    one = house(layout="aligned", granted=True)
    one.ask([2] * 5, max_tokens=9)
    seen = [turn(one) for _ in range(3)]
    one.ask([3] * 30, max_tokens=1)  # of higher priority
    seen += [turn(one) for _ in range(3)]
    assert [op for _, _, op in seen] == [RESET, IN, NOTHING, RESET, IN, NOTHING]
    assert [keys for keys, _, _ in seen] == [[0], [0], [0], [1], [0], [0]]


def test_b10_a_refused_run_issues_exactly_the_pre_change_cache_instructions():
    """The historical cadence: IN iff the ids changed since the completion step before, none remembered after a prompt step."""
    for layout in ("aligned", "stripped"):
        one = house(layout=layout, granted=False)
        one.ask(*prompts(5, 9, 5), max_tokens=7)
        remembered = []
        while one.core.sequences:
            keys, kinds, op = turn(one)
            if kinds[0] == DECODE:
                assert op is (NOTHING if keys == remembered else IN)
                remembered = keys
            else:
                assert op is RESET
                remembered = []


def test_b10_a_refused_run_moves_by_the_cohort_and_keeps_one_width():
    one = house(layout="stripped", granted=False)
    one.ask([2] * 5)
    plan = one.plan()
    assert (plan.layout, plan.advance) == (Layout.ALIGNED, Advance.COHORT)
    two = house(layout="stripped", granted=True)
    two.ask([2] * 5)
    assert (two.plan().layout, two.books.in_flight[-1].plan.advance) == (Layout.STRIPPED, Advance.PER_SEQUENCE)


def test_b1_paged_rows_are_never_assembled_whatever_the_policy():
    for admission in ("paged", "bucketed", "ragged"):
        one = house(admission=admission, layout="paged")
        one.ask(*prompts(5, 9), max_tokens=3)
        while one.core.sequences:
            plan = one.plan()
            assert plan.cache_op is NOTHING
            one.deliver(0)


# B11


def alone(*, prompt=16, **settings):
    """Every plan of one sequence, as bytes, but for what names layout and cadence."""
    one = house(limits={"plans_in_flight": 1, **settings.pop("limits", {})}, **settings)
    one.ask([3] * prompt, max_tokens=9)
    plans = []
    while one.core.sequences:
        plan = one.plan()
        made = wire.plan_to_wire(_without_sampling(plan), session_epoch=1)
        made.ClearField("layout")
        made.ClearField("advance")
        made.ClearField("cache_op")
        plans.append(made.SerializeToString(deterministic=True))
        one.deliver(0)
    return plans


def _without_sampling(plan):
    return replace(plan, new_sequences=[replace(new, sampling=None) for new in plan.new_sequences])


@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("prompt", [1, 16, 30])
def test_b11_b1_is_untouched_by_either_admission_rule(granted, prompt):
    plain = alone(admission="paged", layout="paged", prompt=prompt)
    assert len(plain) == 9
    for admission in ("bucketed", "ragged"):
        for layout in ("paged", "aligned", "stripped"):
            assert alone(admission=admission, layout=layout, granted=granted, prompt=prompt) == plain


def test_b10_ragged_on_an_executor_that_refuses_is_bucketed_plan_for_plan():
    def plans(**settings):
        one = house(**settings)
        one.ask(*prompts(5, 9, 5, 14), max_tokens=9)
        one.settle()
        return one.digest.hexdigest()

    assert plans(admission="ragged", granted=False) == plans(admission="bucketed", granted=True)
    assert plans(admission="ragged", granted=True) != plans(admission="bucketed", granted=True)


# domain 1.7: upstream's defects


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


# A13


def longest_wait(*, num_turns):
    """A long request beside a stream of short ones, each of which is the shortest bucket and ends before it has caught up."""
    one = house(admission="bucketed", layout="paged", limits={"max_num_seqs": 4}, num_blocks=400, max_num_seqs=16)
    one.thorough = False
    one.ask([9] * 40, max_tokens=30)
    waited = most = 0
    for _ in range(num_turns):
        if len(one.core.queue) < 6:
            one.ask([3] * 6, max_tokens=3)
        waited = 0 if 0 in turn(one)[0] else waited + 1
        most = max(most, waited)
    return most


def test_a13_nobody_starves():
    assert longest_wait(num_turns=530) == 257


def test_a13_the_historical_rule_starves(monkeypatch):
    """Correction 5 of decision 0008: neither shortest-first nor the override ever looks at who waits."""
    monkeypatch.setattr("scheduler_svc.core.coalesce.is_overdue", lambda buckets: False)
    assert longest_wait(num_turns=530) == 530


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
    for name in ("admission", "layout", "cadence"):
        del data["limits"][name]
    for record in data["executors"]:
        del record["cohort"]
    assert Scheduler.restore(data).policy.name == "paged"
