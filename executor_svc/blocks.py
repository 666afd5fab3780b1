"""Which blocks each slot's keys and values lie in, and how many distinct blocks are in use.

Legend: N slots, W blocks of the longest sequence, K blocks of the device. Owned by the worker thread. Checks nothing: callers do.
"""

import numpy as np

from executor_svc.plan import I32


class BlockTables:
    """Block tables of all slots.

    Attributes:
        table: i32 [N, W], -1 behind a slot's last block.
        count: i32 [N], blocks of each slot.
        num_in_use: distinct blocks named by any table; a shared block counts once.
    """

    def __init__(self, *, num_slots: int, width: int, num_blocks: int) -> None:
        self.table: I32 = np.full((num_slots, width), -1, np.int32)
        self.count: I32 = np.zeros(num_slots, np.int32)
        self.num_in_use = 0
        self._uses: I32 = np.zeros(num_blocks, np.int32)

    @property
    def width(self) -> int:
        """Most blocks of one slot."""
        return int(self.table.shape[1])

    @property
    def num_blocks(self) -> int:
        """Block ids are 0..num_blocks-1."""
        return len(self._uses)

    def append(self, slots: I32, block_ids: I32) -> None:
        """Appends pairs (slot, block), in order per slot. They must fit."""
        order = np.argsort(slots, kind="stable")
        slots, block_ids = slots[order], block_ids[order]
        first = np.flatnonzero(np.diff(slots, prepend=-1))
        run = np.diff(first, append=len(slots)).astype(np.int32)
        place = self.count[slots] + np.arange(len(slots)) - np.repeat(first, run)
        self.table[slots, place] = block_ids
        self.count[slots[first]] += run
        distinct, uses = np.unique(block_ids, return_counts=True)
        self.num_in_use += int(np.count_nonzero(self._uses[distinct] == 0))
        self._uses[distinct] += uses.astype(np.int32)

    def clear(self, slots: I32) -> None:
        """Forgets the blocks of distinct slots."""
        held = self.table[slots]
        distinct, uses = np.unique(held[held >= 0], return_counts=True)
        self._uses[distinct] -= uses.astype(np.int32)
        self.num_in_use -= int(np.count_nonzero(self._uses[distinct] == 0))
        self.table[slots] = -1
        self.count[slots] = 0
