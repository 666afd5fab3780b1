"""One executor's slots as columns: a steady step touches them all at once, and no sequence by itself."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


class SlotColumns:
    """Lengths per slot, in tokens, i64 [num_slots]. Values outlive a sequence until its slot is used again.

    Attributes:
        upper: most that its cache may hold once every plan in flight has run.
        confirmed: what its cache holds by the last result.
        capacity: what its blocks can hold; never below `upper`.
        limit: most that its cache may ever hold; no row is scheduled past it.
        last_step: last plan that has a row of it.
        num_tokens: tokens known as of its last decode that was applied as a column; 0 = none was.
        recent: u32 [num_slots, block_size]. The token at position p lies at p % block_size until its block is full, or until
            somebody asks the sequence for its tokens.
    """

    def __init__(self, num_slots: int, *, block_size: int) -> None:
        self.upper: I64 = np.zeros(num_slots, np.int64)
        self.confirmed = np.zeros_like(self.upper)
        self.capacity = np.zeros_like(self.upper)
        self.limit = np.zeros_like(self.upper)
        self.last_step = np.zeros_like(self.upper)
        self.num_tokens = np.zeros_like(self.upper)
        self.recent: NDArray[np.uint32] = np.zeros((num_slots, block_size), np.uint32)
        self._block_size = block_size

    def decoded(self, slots: I64, *, lengths: I64, places: I64, token_ids: Sequence[int]) -> None:
        """Each of `slots` fed one token, so that its cache holds `lengths`, `places` of them beyond full blocks, and emitted one.
        What was in a full block was taken before."""
        self.recent[slots, places] = np.asarray(token_ids, np.uint32)
        self.confirmed[slots] = lengths
        self.num_tokens[slots] = lengths + 1

    def tokens_after(self, slot: int, num_tokens: int) -> bytes:
        """Tokens of the slot's sequence behind the first `num_tokens` that only `recent` has, 4 bytes each: part of one block."""
        count = int(self.num_tokens[slot]) - num_tokens
        first = num_tokens % self._block_size
        return self.recent[slot, first : first + count].tobytes() if count > 0 else b""
