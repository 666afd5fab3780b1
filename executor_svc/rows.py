"""Which rows of a plan can run: everything that may be wrong with a row is found here and stays that row's own error.

Legend: R rows of the plan. Whole columns are compared at once; a row is looked at by itself only to word its error.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from drumline.errors import PlanRejected
from executor_svc.plan import BOOL, COHORT, DECODE, I32, PREFILL, PREFILL_LAST, Plan
from executor_svc.slots import EMPTY, ENDED, LIVE, REFUSED, Slots


@dataclass(slots=True)
class Rows:
    """The row columns of a plan, i32 [R] each, and what can be told from the columns alone.

    Attributes:
        slots: with slots that do not exist replaced by 0; `named` keeps what the plan said.
        draft_len: drafts to verify; `num_tokens` counts them.
        together: rows that decode all move by the slowest, so each feeds all that it has not fed for good; elsewhere that is one.
        bad: rows whose slot does not exist or is named twice, with words.
    """

    named: I32
    slots: I32
    kinds: I32
    num_tokens: I32
    starts: I32
    draft_len: I32
    together: bool
    all_decode: bool
    bad: dict[int, str]

    @classmethod
    def of(cls, plan: Plan, *, num_slots: int) -> "Rows":
        """The rows that a plan spells out."""
        named, kinds = plan.slots, plan.row_kinds
        exists = (named >= 0) & (named < num_slots)
        bad = {row: f"slot {int(named[row])} does not exist; slots are 0 to {num_slots - 1}" for row in _where(~exists)}
        uses = np.bincount(named[exists], minlength=num_slots)
        slots = np.where(exists, named, 0).astype(np.int32)
        for row in _where(exists & (uses[slots] > 1)):
            bad[row] = f"slot {int(named[row])} is named by {int(uses[slots[row]])} rows of the plan"
        all_decode = bool((kinds == DECODE).all() and (plan.num_tokens == 1).all())
        draft_len = plan.draft_len if len(plan.draft_len) else np.zeros(len(named), np.int32)
        return cls(named, slots, kinds, plan.num_tokens, plan.starts, draft_len, plan.advance == COHORT, all_decode, bad)

    def decoding(self) -> "Rows":
        """The same rows, each decoding one token: what `repeat_rows` asks for."""
        if self.all_decode and not self.starts.any():
            return self
        size = len(self.slots)
        ones, zeros = np.ones(size, np.int32), np.zeros(size, np.int32)
        kinds = np.full(size, DECODE, np.int32)
        bad = dict(self.bad)
        return replace(self, kinds=kinds, num_tokens=ones, starts=zeros, draft_len=zeros, all_decode=True, bad=bad)


@dataclass(slots=True)
class Verdict:
    """What became of R rows: `running` bool [R]; `skipped` rows; `errors` row -> (code, words). Each row is in exactly one."""

    running: BOOL
    skipped: list[int] = field(default_factory=list)
    errors: dict[int, tuple[str, str]] = field(default_factory=dict)

    def refuse(self, wrong: BOOL, words: Callable[[int], str], *, code: str = PlanRejected.code) -> None:
        """Running rows where `wrong` holds become errors."""
        if wrong.any() and (wrong := wrong & self.running).any():
            for row in _where(wrong):
                self.errors[row] = (code, words(row))
            self.running &= ~wrong


def judge(slots: Slots, rows: Rows, *, block_rows: I32, block_ids: I32, lives_in_blocks: bool) -> Verdict:
    """Sorts rows into running, skipped and failed; appends the blocks of running rows; ends the sequences of failed ones.

    Rows that live in blocks must be covered by them.

    Raises PlanRejected when a block is given to a row that the plan does not have.
    """
    verdict = Verdict(running=np.ones(len(rows.slots), np.bool_))
    _judge_status(slots, rows, verdict)
    if len(block_rows):
        _append_blocks(slots, rows, verdict, block_rows=block_rows, block_ids=block_ids)
    _judge_lengths(slots, rows, verdict)
    if lives_in_blocks:
        _judge_cover(slots, rows, verdict)
    _end_failed(slots, rows, verdict)
    return verdict


def _judge_status(slots: Slots, rows: Rows, verdict: Verdict) -> None:
    status = slots.status[rows.slots]
    if (status == LIVE).all() and not rows.bad:
        return
    exists = rows.named == rows.slots
    ended = exists & (status == ENDED)
    verdict.skipped = _where(ended)
    verdict.running &= ~ended
    for row, words in rows.bad.items():
        if verdict.running[row]:
            verdict.running[row] = False
            verdict.errors[row] = (PlanRejected.code, words)
    verdict.refuse(status == EMPTY, lambda row: f"slot {int(rows.slots[row])} holds no sequence")
    refused = (status == REFUSED) & verdict.running
    for row in _where(refused):
        verdict.errors[row] = slots.refusal(int(rows.slots[row]))
    verdict.running &= ~refused


def _append_blocks(slots: Slots, rows: Rows, verdict: Verdict, *, block_rows: I32, block_ids: I32) -> None:
    size, blocks = len(rows.slots), slots.blocks
    if int(block_rows.min()) < 0 or int(block_rows.max()) >= size:
        raise PlanRejected(f"block_row {int(block_rows.max())} is not a row of the plan, which has {size}")
    wrong = np.zeros(size, np.bool_)
    wrong[block_rows[(block_ids < 0) | (block_ids >= blocks.num_blocks)]] = True
    verdict.refuse(wrong, lambda row: f"block_id out of range; block ids are 0 to {blocks.num_blocks - 1}")
    total = blocks.count[rows.slots] + np.bincount(block_rows, minlength=size)
    verdict.refuse(
        total > blocks.width, lambda row: f"{int(total[row])} blocks are more than the longest sequence has, {blocks.width}"
    )
    kept = verdict.running[block_rows]
    if kept.any():
        blocks.append(rows.slots[block_rows[kept]], block_ids[kept])


def _judge_lengths(slots: Slots, rows: Rows, verdict: Verdict) -> None:
    computed, known = slots.num_computed[rows.slots], slots.num_known[rows.slots]
    left = known - computed
    fed = rows.num_tokens
    if rows.all_decode:
        verdict.refuse(left != 1, lambda row: f"a decode row must have 1 token to feed, it has {int(left[row])}")
    else:
        decode = rows.kinds == DECODE
        unknown = (rows.kinds < PREFILL) | (rows.kinds > DECODE)
        verdict.refuse(unknown, lambda row: f"row_kind {int(rows.kinds[row])} is not known")
        due = (left if rows.together else 1) + rows.draft_len
        verdict.refuse(
            decode & (fed != due), lambda row: f"num_tokens of a decode row must be {int(due[row])}, got {int(fed[row])}"
        )
        drafting = rows.draft_len > 0
        verdict.refuse(~decode & drafting, lambda row: f"draft_len is {int(rows.draft_len[row])}; only a decode row has drafts")
        is_tail = rows.together & (left > 1) & (computed >= slots.num_prompt[rows.slots])
        wrong = decode & (left != 1) & ~is_tail
        verdict.refuse(wrong, lambda row: f"a decode row must have 1 token to feed, it has {int(left[row])}")
        verdict.refuse(
            ~decode & (rows.starts != computed),
            lambda row: f"start {int(rows.starts[row])} of the chunk is not the sequence's own length {int(computed[row])}",
        )
        short, last = rows.kinds == PREFILL, rows.kinds == PREFILL_LAST
        wrong = (short & ((fed < 1) | (fed >= left))) | (last & (fed != left))
        verdict.refuse(wrong, lambda row: f"num_tokens of the chunk is {int(fed[row])}, {int(left[row])} known tokens are left")


def _judge_cover(slots: Slots, rows: Rows, verdict: Verdict) -> None:
    covered = slots.blocks.count[rows.slots] * np.int64(slots.limits.block_size)
    needed = slots.num_computed[rows.slots].astype(np.int64) + rows.num_tokens
    verdict.refuse(needed > covered, lambda row: f"blocks cover {int(covered[row])} tokens, the row needs {int(needed[row])}")


def _end_failed(slots: Slots, rows: Rows, verdict: Verdict) -> None:
    """An error ends the sequence; a row whose slot does not exist ends nobody."""
    if not verdict.errors:
        return
    failed = np.array(list(verdict.errors), np.int32)
    failed = np.unique(rows.slots[failed[rows.named[failed] == rows.slots[failed]]])
    status = slots.status[failed]
    slots.end(failed[(status == LIVE) | (status == REFUSED)])


def _where(mask: BOOL) -> list[int]:
    return [int(row) for row in np.flatnonzero(mask)]
