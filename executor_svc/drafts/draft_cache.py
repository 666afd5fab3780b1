"""What drafting remembers of each token, in the blocks of the target's own cache: a place for every row, found by the same tables.

The place of position p holds what the pair (hidden state behind p - 1, token at p) gives: it depends on nothing behind p. So a
block is a function of the tokens up to its end, as the target's is, and a prefix hit brings it along. Hidden states are kept for
all positions (5 % of what keys and values take), so that whoever did not draft for a while can begin again.

Legend: K blocks, B block size, H hidden size.
"""

import numpy as np
from numpy.typing import NDArray

from executor_svc.model.cache import KvCache, KvType
from executor_svc.model.config import ModelConfig
from executor_svc.model.memory import claimed
from executor_svc.plan import F32, I32, Batch
from kernels.layout import BLOCK_SIZE


class DraftCache:
    """Owned by the drafter; used on the worker's thread.

    Attributes:
        kv: one layer's keys and values.
        complete: bool [K], every place of the block has been computed from the target's own states.
    """

    def __init__(self, config: ModelConfig, *, num_blocks: int, kv_type: KvType) -> None:
        """`config`: of the draft's one layer."""
        self.kv = KvCache(config, num_blocks=num_blocks, kv_type=kv_type)
        self.complete: NDArray[np.bool_] = np.zeros(num_blocks, np.bool_)
        [self._hidden] = claimed(1, (num_blocks * BLOCK_SIZE, config.hidden_size), kv_type)

    def keep(self, batch: Batch, hidden: F32) -> None:
        """The target's hidden states of a batch's fed tokens. A block that begins anew is no longer complete."""
        if len(batch.copy_src):
            self._copy(batch.copy_src, batch.copy_dst)
        places = KvCache.slots_of(batch)
        self._hidden[places] = hidden[: len(places)]
        self.complete[places[places % BLOCK_SIZE == 0] // BLOCK_SIZE] = False

    def _copy(self, source: I32, destination: I32) -> None:
        """Whole blocks, all read before any is written."""
        self.kv.copy(source, destination=destination)
        blocks = self._hidden.reshape(len(self.complete), -1)
        blocks[destination] = blocks[source]
        self.complete[destination] = self.complete[source]

    def hidden_before(self, tables: I32, *, owners: I32, positions: I32) -> F32:
        """The target's state behind the token before each position, f32 [T, H]; zeros before the first.

        `tables`: i32 [R, W]. `owners`: i32 [T], the row of each position.
        """
        before = np.maximum(positions - 1, 0)
        blocks = tables[owners, before // BLOCK_SIZE]
        states: F32 = self._hidden[blocks * BLOCK_SIZE + before % BLOCK_SIZE].astype(np.float32)
        states[positions == 0] = 0
        return states

    def num_complete(self, tables: I32, counts: I32) -> I32:
        """Leading positions of each row that need no computing: whole blocks, as far as all are complete. `counts`: i32 [R],
        tokens."""
        width = tables.shape[1]
        known = self.complete[tables] & (np.arange(width) < (counts // BLOCK_SIZE)[:, None])
        blocks: I32 = np.where(known.all(axis=1), width, known.argmin(axis=1)).astype(np.int32)
        return blocks * np.int32(BLOCK_SIZE)

    def computed(self, tables: I32, *, begin: I32, end: I32) -> None:
        """Positions begin..end-1 of each row were computed from the target's states, as those before them had been."""
        blocks = np.arange(tables.shape[1])
        done = (blocks >= (begin // BLOCK_SIZE)[:, None]) & (blocks < (end // BLOCK_SIZE)[:, None])
        self.complete[tables[done]] = True

    def forget(self) -> None:
        """Nothing is complete."""
        self.complete[:] = False
