"""COHORT over blocks: rows that decode all move by the slowest (domain.md 4.3)."""

from random import Random

import pytest

from scheduler_svc.core.errors import ResultMismatch
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import Advance, Limits, Request, StepResult
from tests.support.core_world import House, executor_info

FIXED = {"drafts": "fixed", "advance": "cohort"}


def settled(**info) -> House:
    """Three rows that have emitted one token each."""
    house = House(limits=FIXED, mtp_depth=3, ragged_granted=True, **info)
    house.ask([2, 3, 4], [5, 6], [7], max_tokens=40)
    house.plan()
    house.deliver(0)
    return house


def answer(house: House, *, emitted: list[int], drafted: list[int], lengths: list[int]) -> None:
    """A result written by hand, for the plan in flight."""
    plan = house.books.in_flight[-1].plan
    result = StepResult(step_id=plan.step_id, num_emitted=emitted, token_ids=[9] * sum(emitted), lengths=lengths)
    result.num_drafted = drafted
    result.num_blocks_in_use = sum(len(seq.blocks) for seq in house.books.running.values())
    house.core.update(0, result)
    house.core.check_invariants()


def test_who_is_ahead_feeds_its_tail_again_and_drafts_less() -> None:
    house = settled()
    plan = house.plan()
    assert (plan.advance, plan.num_tokens, plan.draft_len) == (Advance.COHORT, [4, 4, 4], [3, 3, 3])
    assert not house.send(0)  # the next plan needs to know the tails
    answer(house, emitted=[4, 2, 1], drafted=[3, 3, 3], lengths=[4, 3, 2])
    plan = house.plan()
    assert (plan.num_tokens, plan.draft_len) == ([4, 4, 4], [0, 2, 3])  # tails of 4, 2 and 1
    answer(house, emitted=[1, 3, 3], drafted=[0, 2, 3], lengths=[7, 6, 5])
    plan = house.plan()
    assert (plan.num_tokens, plan.draft_len) == ([4, 4, 4], [2, 2, 3])  # 4+1-3, 2+3-3, 1+3-3
    assert [house.books.cols.confirmed_of(slot) for slot in plan.slots] == [7, 6, 5]


@pytest.mark.parametrize("lengths", [[7, 4, 2], [4, 3, 3], [3, 2, 1]])
def test_a_row_that_does_not_move_by_the_slowest_contradicts_the_books(lengths: list[int]) -> None:
    house = settled()
    house.plan()
    with pytest.raises(ResultMismatch, match="has length"):
        answer(house, emitted=[4, 2, 1], drafted=[3, 3, 3], lengths=lengths)


def test_a_cohort_always_fits_into_a_step() -> None:
    """Tails grow to depth + 1 tokens: of no more rows than the budget holds."""
    house = House(limits=FIXED, mtp_depth=3, ragged_granted=True, max_num_batched_tokens=10)
    house.ask(*([token] for token in range(2, 8)), max_tokens=20)
    assert house.books.max_rows == 2
    house.finish()


def test_without_drafts_nothing_moves_apart_and_plans_stay_two_ahead() -> None:
    house = House(limits={"advance": "cohort"}, ragged_granted=False)
    house.ask([2, 3], [5], max_tokens=9)
    house.plan()
    assert house.plan().advance is Advance.PER_SEQUENCE
    house.finish()


def test_a_snapshot_in_mid_step_knows_the_tails() -> None:
    house = settled()
    house.plan()
    house.deliver(0)
    house.plan()
    house.split()
    house.finish()


def tokens_per_row(advance: str, num_rows: int, *, num_steps: int) -> float:
    """Of rows whose drafts are right with chances from 0.2 to 0.8, at depth 3 in every step, as domain.md 4.3 measured them."""
    random = Random(7)
    limits = Limits(max_num_seqs=128, drafts="fixed", advance=advance, plans_in_flight=1, enable_prefix_caching=False)
    core = Scheduler(limits)
    core.add_executor(executor_info(max_num_seqs=128, max_num_batched_tokens=512, max_model_len=20_000, num_blocks=10**5,
                                    mtp_depth=3, ragged_granted=True))  # fmt: skip
    keys = range(1, num_rows + 1)
    core.add_requests([Request(key, str(key), [5], 16_000) for key in keys])
    chances = {key: 0.2 + 0.6 * (key - 1) / (num_rows - 1) if num_rows > 1 else 0.5 for key in keys}
    books = core.executors[0]
    for _ in range(num_steps):
        plan = core.schedule(0)
        rows = books.in_flight[0].rows
        drafts = plan.draft_len or [0] * len(rows)
        right = [
            next((i for i in range(count) if random.random() > chances[key]), count)
            for key, count in zip(rows.keys, drafts, strict=True)
        ]
        own = [fed - count + good for fed, count, good in zip(plan.num_tokens or [1] * len(rows), drafts, right, strict=True)]
        decodes = rows.num_decodes if plan.advance is Advance.COHORT else 0
        kept = [min(own[:decodes])] * decodes + own[decodes:] if decodes else own
        lengths = [books.cols.confirmed_of(slot) + one for slot, one in zip(rows.slots, kept, strict=True)]
        emitted = [1 + good for good in right]
        core.update(0, StepResult(
            plan.step_id, num_emitted=emitted, token_ids=[9] * sum(emitted), lengths=lengths, num_drafted=drafts,
            num_blocks_in_use=sum(len(seq.blocks) for seq in books.running.values()),
        ))  # fmt: skip
    totals = books.drafting.totals
    return totals.num_tokens / totals.num_rows


def test_who_moves_by_the_slowest_gains_little_from_drafts_and_the_less_the_more_they_are() -> None:
    """domain.md 4.3: 1.85, 1.24, 1.16 tokens a step at 1, 8 and 128 rows; by themselves 1.85, 1.96, 1.95."""
    for num_rows, num_steps, expected in ((1, 4000, 1.85), (8, 600, 1.24), (128, 200, 1.16)):
        assert tokens_per_row("cohort", num_rows, num_steps=num_steps) == pytest.approx(expected, abs=0.06)
    for num_rows, num_steps, expected in ((1, 4000, 1.85), (8, 600, 1.96), (128, 100, 1.95)):
        assert tokens_per_row("per_sequence", num_rows, num_steps=num_steps) == pytest.approx(expected, abs=0.06)
