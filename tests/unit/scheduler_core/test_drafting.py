"""How far drafts run: a draft is made when its chance is worth its price, and what is learned survives a snapshot."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.drafting import ONE, PROBE_EVERY, Drafting
from scheduler_svc.core.step_costs import StepCosts
from tests.support.core_world import House

STEP = PROBE_EVERY + 1  # no probe, neither of the executor nor of slot 0 to 8


def slots(count: int) -> np.ndarray:
    return np.arange(2, 2 + count, dtype=np.int64)


def drafting(*, fixed_ns: int, token_ns: int, chance: float, depth: int = 4) -> Drafting:
    """One whose executor's steps take `fixed_ns` and `token_ns` more for each token."""
    made = Drafting(depth=depth, num_slots=300, adaptive=True)
    made.rate[:] = int(chance * ONE)
    for num_tokens in (1, 2, 4, 8, 32, 64, 128, 256, 512, 1280):
        made.costs.add(num_tokens, fixed_ns + token_ns * num_tokens)
    return made


def choose(made: Drafting, count: int) -> list[int]:
    lens = made.choose(slots(count), step=STEP, num_others=0)
    return [0] * count if lens is None else lens.tolist()


def test_where_memory_decides_drafts_go_as_far_as_chances_do() -> None:
    assert choose(drafting(fixed_ns=10_000_000, token_ns=100_000, chance=0.6), 1) == [4]
    assert choose(drafting(fixed_ns=10_000_000, token_ns=2_000_000, chance=0.6), 1) == [3]  # 0.6^4 is below 2/12


def test_where_products_decide_nobody_drafts() -> None:
    """32 rows: each token costs what it is worth."""
    assert choose(drafting(fixed_ns=10_000_000, token_ns=2_500_000, chance=0.6), 32) == [0] * 32
    assert choose(drafting(fixed_ns=10_000_000, token_ns=2_500_000, chance=0.97), 32) == [3] * 32


def test_each_row_goes_by_its_own_chances() -> None:
    made = drafting(fixed_ns=10_000_000, token_ns=1_000_000, chance=0.0)
    made.rate[2:6] = [int(chance * ONE) for chance in (0.9, 0.1, 0.6, 0.0)]
    assert choose(made, 4) == [4, 0, 2, 0]


def test_chances_follow_what_was_verified_and_a_newcomer_begins_with_those_of_all() -> None:
    made = Drafting(depth=3, num_slots=4, adaptive=True)
    for _ in range(200):
        made.verified(0, num_drafted=3, num_accepted=3)
        made.verified(1, num_drafted=3, num_accepted=0)
        made.verified(2, num_drafted=2, num_accepted=1)
    made.verified(3, num_drafted=0, num_accepted=0)
    assert made.rate[0] > 0.95 * ONE
    assert made.rate[1] < 0.05 * ONE
    assert abs(made.rate[2] - ONE / 2) < 0.1 * ONE
    assert made.rate[3] == ONE // 2
    assert made.totals.accepted_at == [400, 200, 200]
    made.enter(1)
    assert made.rate[1] == made.mean_rate


def test_what_guessing_takes_is_part_of_the_price() -> None:
    made = drafting(fixed_ns=10_000_000, token_ns=100_000, chance=0.6)
    assert made.choose(slots(1), step=STEP, num_others=0) is not None
    for _ in range(20):
        made.draft_costs.add(4, 30_000_000)
    assert made.choose(slots(1), step=STEP, num_others=0) is None
    again = drafting(fixed_ns=10_000_000, token_ns=100_000, chance=0.6)
    again.restore(json.loads(json.dumps(made.data())))
    assert again.choose(slots(1), step=STEP, num_others=0) is None


def test_a_prompt_in_the_step_makes_no_draft_look_free() -> None:
    """The same rows choose the same beside 500 tokens of prompts, in which one token more is nothing, as without them."""
    for chance, lens in ((0.2, [0] * 8), (0.6, [2] * 8)):
        made = drafting(fixed_ns=10_000_000, token_ns=500_000, chance=chance)
        assert choose(made, 8) == lens
        beside = made.choose(slots(8), step=STEP, num_others=500)
        assert ([0] * 8 if beside is None else beside.tolist()) == lens


def test_the_first_drafts_say_more_than_the_guess_before_them() -> None:
    made = Drafting(depth=1, num_slots=2, adaptive=True)
    for _ in range(100):
        made.verified(0, num_drafted=1, num_accepted=0)
    assert made.mean_rate < 0.1 * ONE
    for _ in range(3000):
        made.verified(0, num_drafted=1, num_accepted=1)
    before = made.mean_rate
    for _ in range(20):
        made.verified(0, num_drafted=1, num_accepted=0)
    assert before - made.mean_rate < 0.1 * ONE  # and later ones no more than 1/256 each


def test_a_choice_is_tried_again_now_and_then_and_does_not_flap() -> None:
    made = drafting(fixed_ns=10_000_000, token_ns=100_000, chance=0.6)
    assert made.choose(slots(1), step=PROBE_EVERY, num_others=0) is None
    made.rate[:] = 0
    assert made.choose(slots(1), step=PROBE_EVERY, num_others=0).tolist() == [1]
    made.rate[:] = 0
    tried = [made.choose(slots(20), step=turn * PROBE_EVERY, num_others=0) for turn in range(1, 9)]
    assert all(2 <= each.sum() <= 3 for each in tried)
    assert sum(tried).tolist() == [1] * 20  # one row of eight each time, and each has its turn
    tie = drafting(fixed_ns=0, token_ns=1_000_000, chance=0.999, depth=1)
    tie.costs.add(2, 1_970_000)
    assert tie.choose(slots(1), step=STEP, num_others=0) is None
    tie.sent(step=STEP, drafted=True)
    assert tie.choose(slots(1), step=STEP, num_others=0) is not None


@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 10**10)), max_size=60), st.integers(1, 3000))
def test_costs_are_always_numbers_to_divide_by(measured: list[tuple[int, int]], num_tokens: int) -> None:
    costs = StepCosts()
    for tokens, ns in measured:
        costs.add(tokens, ns)
    assert costs.of(num_tokens) >= 1


def test_costs_lie_between_those_that_are_known() -> None:
    costs = StepCosts()
    costs.add(16, 1_000)
    costs.add(64, 4_000)
    assert costs.of(16) // 256 == 1_000
    assert costs.of(40) // 256 == 2_500
    assert costs.of(8) < costs.of(16) < costs.of(300)
    for _ in range(30):
        costs.add(64, 10**12)  # one hiccup after the other counts for so much and no more
    assert costs.of(64) // 256 < 4_000 * 4**30
    costs.add(32, 2_000)
    before = costs.of(32)
    costs.add(32, 10**12)
    assert costs.of(32) < 2 * before


@pytest.mark.parametrize("policy", ["adaptive", "fixed", "off"])
def test_answers_are_the_same_and_so_is_a_restored_core(policy: str) -> None:
    house = House(limits={"drafts": policy}, mtp_depth=3, max_num_seqs=8, ragged_granted=True)
    house.ask([2, 3, 4], [5, 6], [7], max_tokens=30)
    for _ in range(12):
        house.send(0)
        house.deliver(0)
    house.split()
    json.dumps(house.core.snapshot()["executors"][0]["drafting"])
    house.ask([9] * 5, max_tokens=20)
    house.finish()
    accepted = house.books.drafting.totals.num_accepted_tokens if house.books.drafting else 0
    assert (accepted > 0) == (policy != "off")


def test_fixed_drafts_shrink_where_there_is_no_room_for_them() -> None:
    """Near the end of a sequence, of the budget and of the blocks; nobody is preempted for a draft."""
    house = House(limits={"drafts": "fixed", "plans_in_flight": 1}, mtp_depth=3, max_num_batched_tokens=6, ragged_granted=True)
    house.ask([2, 3], max_tokens=3)
    house.plan()
    house.deliver(0)
    assert house.plan().draft_len == [1]  # two tokens are left, and the last needs no draft
    house.finish()
    house.ask([2], [3], [4], max_tokens=9)
    house.plan()
    house.deliver(0)
    plan = house.plan()
    assert plan.draft_len == [3, 0, 0]
    assert sum(plan.num_tokens) == 6
    house.finish()
