"""Starts a replay in the middle of a session: synthetic plans rebuild what the executor held at the snapshot.

First the cached chains that no live row computes, then every live row up to its confirmed length, each at its own block ids.
Arithmetic that does not depend on chunking (float32, fake) makes the same keys and values as the recorded session did. Step ids
restart at 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from drumline.common.v1.common_pb2 import SamplingParams
from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from drumline.plan.v1 import plan_pb2 as pb
from scheduler_svc.replay.books import PREFILL, Step

WITHDRAWN, DISCARDING = 5, 4


@dataclass(frozen=True, slots=True)
class _Fill:
    """A sequence to bring in and compute up to `length`; `keep` leaves it in its slot."""

    slot: int
    tokens: list[int]
    length: int
    blocks: list[int]
    num_prompt: int
    sampling: SamplingParams
    keep: bool


class Warmup:
    """Does nothing for a recording that begins with its session.

    Attributes:
        note: what could not be rebuilt, in words.
        unknown: slots whose rows cannot be compared until another sequence enters them.
    """

    def __init__(self, executor_id: int, caps: GetCapabilitiesResponse) -> None:
        self.executor_id = executor_id
        self.note = ""
        self.unknown: set[int] = set()
        self._caps = caps
        self._record: dict[str, Any] | None = None
        self._sequences: list[dict[str, Any]] = []
        self._num_plans = 0
        self._first_step = 1
        self._spelled_out = True
        self._blocks_settled_after = 0
        self._is_dense = False

    def begin(self, state: dict[str, Any]) -> None:
        """The core's state at the snapshot that the recording begins with."""
        for record in state.get("executors", ()):
            if record["info"]["executor_id"] == self.executor_id:
                self._record = record
                self._first_step = record["in_flight"][0]["plan"]["step_id"] if record["in_flight"] else record["next_step"]
                self._blocks_settled_after = record["next_step"] - 1
                self._spelled_out = False
        self._sequences = state.get("sequences", [])
        self._is_dense = state.get("limits", {}).get("layout", "paged") != "paged"

    def check(self, result: pb.StepResult) -> None:
        """Result of one of `plans`: a row that failed could not be rebuilt."""
        for error in result.row_errors:
            self.note = f"the warm-up failed: {error.error.code}: {error.error.message}"

    def compares_blocks(self, step: Step) -> bool:
        """Whether the executor's count of blocks can be held against the recorded one yet."""
        return int(step.plan.step_id) > self._blocks_settled_after

    def plans(self, *, session_epoch: int, grant_id: int) -> Iterator[pb.StepPlan]:
        """Plans to run before the first recorded one."""
        if self._record is None:
            return
        done: set[int] = set()
        for fill in (*self._chains(self._record), *self._rows(self._record)):
            for plan in self._fill(fill, done):
                self._num_plans += 1
                plan.step_id, plan.session_epoch, plan.grant_id = self._num_plans, session_epoch, grant_id
                self._place(plan)
                yield plan
            done.update(fill.blocks[: fill.length // self._caps.block_size])

    def renumbered(self, step: Step, *, session_epoch: int) -> pb.StepPlan:
        """A recorded plan as it must be sent: as it is, or moved behind the warm-up."""
        plan = step.plan
        if self._record is None and plan.session_epoch == session_epoch:
            return plan
        moved = pb.StepPlan()
        moved.CopyFrom(plan)
        moved.session_epoch = session_epoch
        moved.step_id = plan.step_id - self._first_step + 1 + self._num_plans
        self.unknown.difference_update(new.slot for new in plan.new_sequences)
        if step.rows and not self._spelled_out:
            self._spelled_out = True
            if self._is_dense and plan.cache_op == pb.CACHE_OP_NOTHING:  # the cohort that it goes on with is not there
                moved.cache_op = pb.CACHE_OP_IN
            if plan.repeat_rows:  # the plan that it repeats was sent before the recording began
                moved.repeat_rows = False
                moved.slot.extend(row.resident.slot for row in step.rows)
                moved.row_kind.extend([pb.ROW_KIND_DECODE] * len(step.rows))
                moved.num_tokens.extend([1] * len(step.rows))
                moved.start.extend([0] * len(step.rows))
        return moved

    def _place(self, plan: pb.StepPlan) -> None:
        """A session is paged or dense throughout; a dense row begins an empty cache, or goes on from its own."""
        plan.layout, plan.cache_op, plan.advance = pb.LAYOUT_PAGED, pb.CACHE_OP_NOTHING, pb.ADVANCE_PER_SEQUENCE
        if self._is_dense:
            begins = any(start == 0 for start in plan.start)
            plan.layout, plan.cache_op = pb.LAYOUT_ALIGNED, pb.CACHE_OP_RESET if begins else pb.CACHE_OP_IN
            if not plan.slot:
                plan.cache_op = pb.CACHE_OP_NOTHING

    def _rows(self, record: dict[str, Any]) -> Iterator[_Fill]:
        confirmed = record["columns"]["confirmed"]
        here = [one for one in self._sequences if one["executor_id"] == self.executor_id]
        by_slot = {one["slot"]: one for one in (*record["departed"], *here) if one["slot"] >= 0}
        for slot, blocks in record["tables"]:
            one = by_slot.get(slot)
            whole = one is not None and 0 < confirmed[slot] < len(one["tokens"])
            if one is None or not whole or one["state"] in (WITHDRAWN, DISCARDING):
                self.unknown.add(slot)
                continue
            yield _Fill(slot, one["tokens"], confirmed[slot], blocks, one["num_prompt"], one["sampling"], keep=True)
        if self.unknown:
            self.note = f"slots {sorted(self.unknown)} were about to be given back at the snapshot; their rows are not compared"

    def _chains(self, record: dict[str, Any]) -> Iterator[_Fill]:
        """Published blocks by chain, a leaf at a time; a prefix that another leaf computed is hit."""
        by_digest = {entry["digest"]: entry for entry in record["published"] if entry["confirmed"]}
        parents = {entry["parent"] for entry in by_digest.values()}
        for digest, entry in by_digest.items():
            if digest in parents:
                continue
            chain = [entry]
            while (parent := by_digest.get(chain[-1]["parent"])) is not None:
                chain.append(parent)
            room = (self._caps.max_model_len - 2) // self._caps.block_size
            chain = chain[::-1][:room]
            tokens = [token for one in chain for token in one["tokens"]]
            blocks = [one["block"] for one in chain]
            # one more token than is computed, so that nothing is sampled; any slot will do, rows come later
            yield _Fill(0, [*tokens, 0], len(tokens), blocks, len(tokens) + 1, SamplingParams(max_tokens=1), keep=False)

    def _fill(self, fill: _Fill, done: set[int]) -> Iterator[pb.StepPlan]:
        size = self._caps.block_size
        cached = 0
        while cached < fill.length // size and fill.blocks[cached] in done:
            cached += 1
        start = cached * size
        plan = pb.StepPlan()
        plan.new_sequences.add(
            slot=fill.slot,
            token_ids=fill.tokens,
            num_prompt_tokens=fill.num_prompt,
            num_cached_tokens=start,
            sampling=fill.sampling,
        )
        blocks = fill.blocks
        while start < fill.length:
            count = min(fill.length - start, self._caps.max_num_batched_tokens)
            for column, value in ((plan.slot, fill.slot), (plan.row_kind, PREFILL), (plan.num_tokens, count), (plan.start, start)):
                column.append(value)
            plan.block_row.extend([0] * len(blocks))
            plan.block_id.extend(blocks)
            blocks = []
            start += count
            yield plan
            plan = pb.StepPlan()
        if plan.new_sequences and fill.keep:
            # every token came from cached blocks; a row is needed to append them, so its last block is computed again
            yield from self._fill(fill, done - {fill.blocks[cached - 1]} if cached else done)
        elif not fill.keep and not plan.new_sequences:
            plan.freed_slots.append(fill.slot)
            yield plan
