"""Rules of the slots that deserve their own sentence; each one a small session with a scripted sampler."""

from typing import Any

import numpy as np
import pytest

from drumline.errors import PlanRejected
from executor_svc.batch import Assembler, Step
from executor_svc.commit import commit
from executor_svc.plan import Sampled, StepResult
from executor_svc.slots import SlotLimits, Slots
from executor_svc.wire import plan_of
from tests.support.executor_process import new_sequence, plan, prompt_rows

LIMITS = SlotLimits(
    num_slots=4, max_model_len=32, max_num_batched_tokens=40, block_size=4, num_blocks=32, vocab_size=100, eos_token_ids=(0,)
)


class Session:
    def __init__(self) -> None:
        self.slots = Slots(LIMITS)
        self.assembler = Assembler(self.slots)

    def apply(self, **columns: Any) -> Step:
        return self.assembler.apply(plan_of(plan(step_id=1, session_epoch=1, **columns), max_num_seqs=4))

    def step(self, token: int = 50, **columns: Any) -> StepResult:
        step = self.apply(**columns)
        return commit(self.slots, step, Sampled(token_ids=np.full(len(step.batch.sample.rows), token, np.int32)))


def enter(*slots: int, **sampling: Any) -> dict[str, Any]:
    return prompt_rows({slot: [5, 6, 7] for slot in slots}, blocks={slot: [slot * 8, slot * 8 + 1] for slot in slots}, **sampling)


@pytest.fixture
def session() -> Session:
    return Session()


def test_b056_blocks_of_a_sequence_that_ended_are_counted_off_once(session: Session) -> None:
    assert session.step(**enter(0, 1)).num_blocks_in_use == 4
    assert session.step(0, repeat_rows=True).num_blocks_in_use == 0
    assert session.step(freed_slots=[0, 1]).num_blocks_in_use == 0
    assert session.step(freed_slots=[0, 1, 1], aborted_slots=[0]).num_blocks_in_use == 0
    assert session.step(**enter(0)).num_blocks_in_use == 2


def test_a_shared_block_counts_once_until_its_last_user_ends(session: Session) -> None:
    shared = prompt_rows({0: [5, 6, 7], 1: [5, 6, 7]}, blocks={0: [3, 4], 1: [3, 5]})
    assert session.step(**shared).num_blocks_in_use == 3
    assert session.step(aborted_slots=[0]).num_blocks_in_use == 2
    assert session.step(aborted_slots=[1]).num_blocks_in_use == 0


def test_another_sequence_in_the_same_slot_and_row_is_sampled_by_its_own_parameters(session: Session) -> None:
    session.step(**enter(0, stop_token_ids=[50], min_tokens=5))
    step = session.apply(freed_slots=[0], **enter(0, stop_token_ids=[9], temperature=0.5))
    assert step.batch.sample.end_ids.tolist() == [0, 9]
    assert step.batch.sample.temperature.tolist() == [0.5]
    assert not step.batch.sample.ban_end.any()


def test_repeat_rows_looks_past_plans_without_rows(session: Session) -> None:
    session.step(**enter(0, 1))
    session.step()
    assert session.step(repeat_rows=True).lengths.tolist() == [4, 4]


def test_repeat_rows_after_a_prefill_chunk_decodes(session: Session) -> None:
    session.step(**enter(0))
    step = session.apply(repeat_rows=True)
    assert (step.batch.token_ids.tolist(), step.batch.positions.tolist(), step.batch.context_len.tolist()) == ([50], [3], [4])


def test_an_aborted_newcomer_that_was_wrong_is_skipped_like_any_other(session: Session) -> None:
    session.step(new_sequences=[new_sequence(2, [5], top_p=9.0)])
    session.step(aborted_slots=[2])
    result = session.step(slot=[2], row_kind=[2], num_tokens=[1], start=[0])
    assert (result.skipped, result.row_errors) == ([0], [])


def test_a_wrong_newcomer_is_reported_by_its_first_row_whenever_that_comes(session: Session) -> None:
    session.step(new_sequences=[new_sequence(2, [5], top_p=9.0)])
    session.step()
    columns = {"slot": [2], "row_kind": [2], "num_tokens": [1], "start": [0]}
    assert session.step(**columns).row_errors[0][1] == "invalid_request"
    assert session.step(**columns).skipped == [0]


def test_a_slot_is_not_given_twice(session: Session) -> None:
    session.step(**enter(0))
    result = session.step(**enter(0))
    assert (result.row_errors[0][1], result.num_blocks_in_use) == ("plan_rejected", 0)
    assert "still holds" in result.row_errors[0][2]


def test_two_rows_of_one_slot_both_fail_and_others_run(session: Session) -> None:
    session.step(**enter(0, 1))
    result = session.step(slot=[0, 1, 0], row_kind=[3] * 3, num_tokens=[1] * 3, start=[0] * 3)
    assert [row for row, _, _ in result.row_errors] == [0, 2]
    assert result.num_emitted.tolist() == [0, 1, 0]
    assert session.step(repeat_rows=True).skipped == [0, 2]


def test_frees_come_before_newcomers_and_their_blocks_may_be_given_on(session: Session) -> None:
    session.step(**enter(0))
    columns = enter(0) | {"block_id": [0, 1]}
    result = session.step(freed_slots=[0], **columns)
    assert (result.row_errors, result.num_blocks_in_use) == ([], 2)


def test_the_context_ends_a_sequence_and_max_tokens_counts_a_resumed_output(session: Session) -> None:
    columns = prompt_rows({0: [5] * 31, 1: [5, 6, 7, 8]}, blocks={0: range(8), 1: [20]}, max_tokens=20)
    columns["new_sequences"][1].num_prompt_tokens = 2
    columns["new_sequences"][1].sampling.max_tokens = 3
    assert session.step(**columns).finished == [(0, 2), (1, 2)]


def test_stop_wins_over_length_and_min_tokens_over_stop(session: Session) -> None:
    assert session.step(9, **enter(0, stop_token_ids=[9], max_tokens=1)).finished == [(0, 1)]
    session = Session()
    results = [session.step(9, **enter(0, stop_token_ids=[9], min_tokens=2))] + [
        session.step(9, repeat_rows=True) for _ in range(2)
    ]
    assert [result.finished for result in results] == [[], [], [(0, 1)]]


def test_ban_end_holds_exactly_until_min_tokens(session: Session) -> None:
    bans = [session.apply(**enter(0, min_tokens=2))]
    for _ in range(3):
        commit(session.slots, bans[-1], Sampled(token_ids=np.array([50], np.int32)))
        bans.append(session.apply(repeat_rows=True))
    assert [bool(step.batch.sample.ban_end[0]) for step in bans] == [True, True, False, False]


def test_a_plan_above_the_token_budget_is_rejected_as_a_whole(session: Session) -> None:
    columns = prompt_rows({0: [5] * 25, 1: [5] * 25}, blocks={0: range(8), 1: range(8, 16)})
    with pytest.raises(PlanRejected, match="max_num_batched_tokens, 40"):
        session.step(**columns)


@pytest.mark.parametrize(
    ("source", "destination", "words"),
    [
        ([1, 2], [5, 5], "copy_dst names block 5 more than once"),
        ([1, 2, 3], [6, 7, 6], "copy_dst names block 6 more than once"),
        ([32], [5], "copy_src names block 32; block ids are 0 to 31"),
        ([1, 2], [5, 40], "copy_dst names block 40; block ids are 0 to 31"),
    ],
)
def test_copies_that_cannot_all_be_made_are_rejected(
    session: Session, source: list[int], destination: list[int], words: str
) -> None:
    with pytest.raises(PlanRejected, match=words):
        session.apply(copy_src=source, copy_dst=destination)


def test_one_block_may_be_copied_into_several(session: Session) -> None:
    assert session.apply(copy_src=[1, 1], copy_dst=[5, 6]).batch.copy_dst.tolist() == [5, 6]


def test_steady_decode_gathers_columns_once(session: Session) -> None:
    """ "Same cohort, advance": what does not change is the same object, not a copy of it."""
    session.step(**enter(0, 1, 2))
    first, second = session.apply(repeat_rows=True), None
    commit(session.slots, first, Sampled(token_ids=np.full(3, 50, np.int32)))
    second = session.apply(repeat_rows=True)
    assert first.batch.sample.end_ids is second.batch.sample.end_ids
    assert first.batch.sample.seed is second.batch.sample.seed
    assert (second.batch.sample.num_known - first.batch.sample.num_known).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "start", "num_tokens", "words"),
    [
        (1, 0, 3, "num_tokens of the chunk is 3, 3 known tokens are left"),
        (1, 0, 0, "num_tokens of the chunk is 0"),
        (2, 0, 2, "num_tokens of the chunk is 2, 3 known tokens are left"),
        (2, 0, 4, "num_tokens of the chunk is 4"),
        (2, 1, 2, "start 1 of the chunk is not the sequence's own length 0"),
        (3, 0, 1, "a decode row must have 1 token to feed, it has 3"),
        (3, 0, 2, "num_tokens of a decode row must be 1"),
        (0, 0, 1, "row_kind 0 is not known"),
        (4, 0, 1, "row_kind 4 is not known"),
    ],
)
def test_a_row_that_does_not_fit_the_sequences_own_length_is_told_both_numbers(
    session: Session, kind: int, start: int, num_tokens: int, words: str
) -> None:
    columns = enter(0) | {"row_kind": [kind], "start": [start], "num_tokens": [num_tokens]}
    result = session.step(**columns)
    assert words in result.row_errors[0][2]
    assert result.num_blocks_in_use == 0
