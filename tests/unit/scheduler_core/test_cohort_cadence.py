"""What the bucketed and the ragged rule tell the executor to do with its cohort: rows B1, B10 and B11."""

from dataclasses import replace

import pytest

from scheduler_svc import wire
from scheduler_svc.core.types import Advance, CacheOp, Layout
from tests.support.cohort_house import DECODE, house, prompts, turn

NOTHING, IN, RESET = CacheOp.NOTHING, CacheOp.IN, CacheOp.RESET


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
