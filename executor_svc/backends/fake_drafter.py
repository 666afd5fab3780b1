"""A drafter that knows what the fake backend will choose, and says something else as often as it is told to."""

from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from executor_svc.drafter import Drafts
from executor_svc.plan import F32, I32, U64, Batch, SampleColumns
from executor_svc.slots import Slots

_SALT: Final = np.uint64(0xD1B54A32D192ED03)


class Fake(Protocol):
    """What it asks of the fake backend."""

    def write(self, token_ids: I32, *, positions: I32, blocks: I32) -> None: ...
    def read(self, block_tables: I32, *, context_len: I32) -> U64: ...
    def choose(self, state: U64, sample: SampleColumns) -> tuple[U64, I32]: ...


class FakeDrafter:
    """Right guesses come from the fake's own choice, token by token: what it writes for that is what the step writes again."""

    name = "mtp"

    def __init__(self, fake: Fake, *, luck: float) -> None:
        """`luck`: chance that a guess behind right ones is right. It depends on the context only."""
        self._fake = fake
        self._bar = np.uint64(min(int(luck * 2**53), 2**53))

    def observe(self, batch: Batch, hidden: F32) -> None:
        """See `Drafter`: it looks at texts only."""

    def forget(self) -> None:
        """See `Drafter`: it keeps nothing."""

    def propose(self, slots: Slots, rows: I32, *, most: I32) -> Drafts:
        """See `Drafter`."""
        known, depth = slots.num_known[rows], int(most.max(initial=0))
        tables = slots.blocks.table[rows]
        columns, _ = slots.sampling.gather(rows, tokens=slots.tokens, num_prompt=slots.num_prompt)
        guess = slots.tokens[rows, known - 1]
        token_ids: I32 = np.zeros((len(rows), depth), np.int32)
        for step in range(depth):
            wanted = step < most
            positions = (known + step - 1)[wanted]
            self._fake.write(guess[wanted], positions=positions, blocks=tables[wanted, positions // slots.limits.block_size])
            state = self._fake.read(tables, context_len=np.where(wanted, known + step, 1).astype(np.int32))
            position = known + step - columns.num_prompt
            ban_end = position < slots.sampling.min_tokens[rows]
            sample = replace(columns, output_pos=position, num_known=known + step, ban_end=ban_end)
            _, right = self._fake.choose(state, sample)
            is_lucky = (state ^ _SALT) * _SALT >> np.uint64(11) < self._bar
            guess = np.where(is_lucky, right, np.maximum(right - 1, 0)).astype(np.int32)
            token_ids[:, step] = guess
        return Drafts(token_ids, most.astype(np.int32))
