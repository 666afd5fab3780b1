"""The rolling slot of hidden states ("xs"): a compressed row for every `ratio` tokens, and raw rows not compressed yet.

Legend: X width of a hidden state, C width of a compressed row. Compressed rows are start-anchored: column j is block j of every
row. Raw rows are end-anchored and few. Each sequence keeps its own counts, so a cohort of these slots is the slots side by side:
nothing is aligned and there is no dead prefix to drop.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.slot_kinds import F32, SlotKind

TAIL_MARGIN: Final = 16
"""Raw rows kept beyond a pool's span, so that a verify step can be rolled back."""
Pool = Callable[[F32], F32]
"""[span * ratio, X] raw rows, the last `ratio` of them the block's own -> its compressed row [C]. Rows before the first are 0."""


class XsRollingSlot:
    """See `KvSlot`; `length` is in tokens.

    Attributes:
        comp: f32 [blocks, C], one row for each whole block of `ratio` tokens.
        tail: f32 [n, X], raw rows of positions base..tokens-1.
        tokens: tokens seen. base: position of the first raw row that is left.
        ratio: tokens of a block. span: blocks that a pool looks at, its own included.
        per_sequence: whether batch mates may have seen other numbers of tokens (ARC_V4_XS_PER_SEQ).
    """

    kind: Final = SlotKind.XS_ROLLING

    def __init__(
        self, pool: Pool, *, width: int, compressed_width: int, ratio: int, span: int = 1, per_sequence: bool = False
    ) -> None:
        self.comp: F32 = np.zeros((0, compressed_width), np.float32)
        self.tail: F32 = np.zeros((0, width), np.float32)
        self.tokens = 0
        self.base = 0
        self.ratio = ratio
        self.span = span
        self.per_sequence = per_sequence
        self._pool = pool

    @property
    def supports_per_sequence_len(self) -> bool:
        """See `KvSlot`: as the switch says."""
        return self.per_sequence

    @property
    def length(self) -> int:
        """See `KvSlot`: tokens seen."""
        return self.tokens

    def append(self, rows: F32) -> None:
        """Takes raw rows [t, X]; pools each block that they complete, then lets go of raw rows that no pool will want again."""
        self.tail = np.concatenate([self.tail, rows])
        self.tokens += len(rows)
        fresh = [self._pooled(block) for block in range(len(self.comp), self.tokens // self.ratio)]
        if fresh:
            self.comp = np.concatenate([self.comp, np.stack(fresh)])
        over = len(self.tail) - (self.span * self.ratio + TAIL_MARGIN)
        if over > 0:
            self.tail, self.base = self.tail[over:].copy(), self.base + over

    def set_len(self, length: int) -> None:
        """See `KvSlot`; refuses what lies below the raw rows that are left: a pool there could not be made again."""
        if not 0 <= length <= self.tokens:
            raise CacheRefused(f"an {self.kind} slot of {self.tokens} tokens has no length {length}")
        if length < self.base or (length < self.tokens and self._needs_from(length) < self.base):
            raise CacheRefused(
                f"an {self.kind} slot cannot go from {self.tokens} to {length} tokens: its raw rows begin at {self.base}, "
                "those before are compressed"
            )
        self.comp = self.comp[: length // self.ratio]
        self.tail = self.tail[: length - self.base]
        self.tokens = length

    def num_visible(self, position: int) -> int:
        """Compressed rows that the query at `position` may see: block b iff b < (position + 1) // ratio."""
        return min(len(self.comp), (position + 1) // self.ratio)

    def _needs_from(self, length: int) -> int:
        """First raw row that the block after `length` tokens pools over."""
        return max(0, (length // self.ratio + 1 - self.span) * self.ratio)

    def _pooled(self, block: int) -> F32:
        first, stop = (block + 1 - self.span) * self.ratio, (block + 1) * self.ratio
        rows = self.tail[max(first, 0) - self.base : stop - self.base]
        missing = stop - first - len(rows)
        return self._pool(np.concatenate([np.zeros((missing, rows.shape[1]), np.float32), rows]))
