"""Runs turns on a backend, as many at a time as it has slots, and keeps the hidden state of every token: a queue in, dialogues
out."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor_svc.backends.cpu import CpuBackend
from executor_svc.batch import Assembler
from executor_svc.commit import commit
from executor_svc.drafter import Drafts
from executor_svc.plan import CACHE_NOTHING, DECODE, F32, I32, PAGED, PER_SEQUENCE, PREFILL_LAST, Batch, NewSequence, Plan
from executor_svc.service import slot_limits
from executor_svc.slots import Slots
from executor_svc.training.dialogues import Turn

_NONE: I32 = np.zeros(0, np.int32)
MAX_PREFILL = 256
"""Prompt tokens of newcomers in one step."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A turn that is over.

    Attributes:
        token_ids: u16 or u32 [T], prompt, then what was generated.
        hidden: f16 [T - 1, H], the target's state behind each token but the last.
    """

    turn: Turn
    token_ids: NDArray[Any]
    hidden: NDArray[np.float16]


class StateKeeper:
    """A `Drafter` that guesses nothing and keeps what it observes: f16 [slots, positions, H]."""

    name = "keeper"

    def __init__(self, *, num_slots: int, max_len: int, hidden_size: int) -> None:
        self.states = np.zeros((num_slots, max_len, hidden_size), np.float16)

    def observe(self, batch: Batch, hidden: F32) -> None:
        """See `Drafter`."""
        owners = np.repeat(batch.slots, np.diff(batch.query_start))
        self.states[owners, batch.positions] = hidden[: len(owners)]

    def forget(self) -> None:
        """See `Drafter`."""

    def propose(self, slots: Slots, rows: I32, *, most: I32) -> Drafts:
        """See `Drafter`."""
        return Drafts(np.zeros((len(rows), 0), np.int32), np.zeros(len(rows), np.int32))


class Generator:
    """One backend, kept full. Blocks are dealt once: each slot has its own."""

    def __init__(self, backend: CpuBackend, keeper: StateKeeper, *, max_len: int) -> None:
        """The backend needs blocks for `max_len` tokens of each of its slots."""
        limits = slot_limits(backend.model, backend.info)
        self._width = -(-max_len // limits.block_size)
        if limits.num_blocks < self._width * limits.num_slots:
            raise ValueError(f"{limits.num_blocks} blocks are too few for {limits.num_slots} slots of {self._width}")
        self._backend = backend
        self._keeper = keeper
        self._slots = Slots(limits)
        self._assembler = Assembler(self._slots)
        self._turns: dict[int, Turn] = {}

    def run(self, next_turn: Callable[[], Turn | None], *, waiting: deque[Turn]) -> Iterator[Finished]:
        """Yields turns as they end; `waiting` goes first, then whatever `next_turn` gives. The caller may add to `waiting`."""
        while True:
            fresh = self._admit(next_turn, waiting)
            if not self._turns:
                return
            alive = sorted(self._turns)
            plan = self._plan(alive, fresh)
            step = self._assembler.apply(plan)
            result = commit(self._slots, step, self._backend.forward(step.batch))
            if result.row_errors:
                raise RuntimeError(f"a turn failed: {result.row_errors[0]}")
            for row, _ in result.finished:
                slot = int(plan.slots[row])
                yield self._finish(slot)

    def _admit(self, next_turn: Callable[[], Turn | None], waiting: deque[Turn]) -> list[int]:
        fresh, budget = list[int](), MAX_PREFILL
        for slot in range(self._slots.limits.num_slots):
            if slot in self._turns or (fresh and budget <= 0):
                continue
            turn = waiting.popleft() if waiting else next_turn()
            if turn is None:
                break
            self._turns[slot] = turn
            fresh.append(slot)
            budget -= len(turn.prompt)
        return fresh

    def _plan(self, alive: list[int], fresh: list[int]) -> Plan:
        is_new = np.isin(alive, fresh)
        new = [
            NewSequence(slot, _ids(self._turns[slot].prompt), len(self._turns[slot].prompt), 0, self._turns[slot].sampling)
            for slot in fresh
        ]
        fed = [len(self._turns[slot].prompt) if slot in set(fresh) else 1 for slot in alive]
        rows = np.flatnonzero(is_new)
        blocks = (np.array(fresh, np.int32)[:, None] * self._width + np.arange(self._width, dtype=np.int32)).ravel()
        return Plan(
            step_id=1,
            session_epoch=0,
            grant_id=0,
            cohort_id=0,
            cache_op=CACHE_NOTHING,
            layout=PAGED,
            advance=PER_SEQUENCE,
            freed_slots=fresh,
            aborted_slots=[],
            new_sequences=new,
            repeat_rows=False,
            slots=_ids(alive),
            row_kinds=np.where(is_new, PREFILL_LAST, DECODE).astype(np.int32),
            num_tokens=_ids(fed),
            starts=np.zeros(len(alive), np.int32),
            block_rows=np.repeat(rows, self._width).astype(np.int32),
            block_ids=blocks.astype(np.int32),
            copy_src=_NONE,
            copy_dst=_NONE,
        )

    def _finish(self, slot: int) -> Finished:
        known = int(self._slots.num_known[slot])
        tokens = self._slots.tokens[slot, :known].astype(np.uint16 if self._slots.limits.vocab_size <= 2**16 else np.uint32)
        return Finished(self._turns.pop(slot), tokens, self._keeper.states[slot, : known - 1].copy())


def _ids(values: list[int]) -> I32:
    return np.array(values, np.int32)
