"""The rolling slot: a sliding window that keeps its last W tokens and some slack, and has forgotten the rest for good."""

from typing import Final

import numpy as np

from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.slot_kinds import F32, SlotKind

TILE: Final = 16
"""Tokens are dropped in whole tiles, so that attention's tiles stay at absolute positions and no bit depends on when it rolled."""


class RollingSlot:
    """See `KvSlot`. Column j holds the token at position `dropped + j`.

    Attributes:
        keys: f32 [K, D, Y]. values: f32 [K, Y, D]. Y = window and slack.
        window: W, tokens that must stay visible.
        write_pos: column of the next token.
        dropped: tokens that the window has left behind, a multiple of 16.
    """

    kind: Final = SlotKind.ROLLING
    supports_per_sequence_len: Final = False

    def __init__(self, *, num_kv_heads: int, head_dim: int, window: int, slack: int = 4 * TILE) -> None:
        """Raises ValueError when the slack is too small to roll by whole tiles."""
        if window < 1 or slack < 2 * TILE:
            raise ValueError(f"a rolling slot needs a window and {2 * TILE} columns of slack, got {window} and {slack}")
        columns = -(-(window + slack) // TILE) * TILE
        self.keys: F32 = np.zeros((num_kv_heads, head_dim, columns), np.float32)
        self.values: F32 = np.zeros((num_kv_heads, columns, head_dim), np.float32)
        self.window = window
        self.write_pos = 0
        self.dropped = 0

    @property
    def length(self) -> int:
        """See `KvSlot`: tokens seen."""
        return self.dropped + self.write_pos

    def append(self, keys: F32, values: F32) -> None:
        """Writes t tokens, [K, D, t] and [K, t, D]; rolls first when they do not fit. At most a slack's worth at a time."""
        count, columns = values.shape[1], self.values.shape[1]
        if self.write_pos + count > columns:
            self._roll()
        if self.write_pos + count > columns:
            raise CacheRefused(f"a {self.kind} slot of {columns} columns cannot take {count} tokens at once")
        self.keys[:, :, self.write_pos : self.write_pos + count] = keys
        self.values[:, self.write_pos : self.write_pos + count] = values
        self.write_pos += count

    def set_len(self, length: int) -> None:
        """See `KvSlot`; impossible once the window has dropped tokens, which a shorter sequence would have to see again."""
        if length == self.length:
            return
        if self.dropped:
            raise CacheRefused(
                f"a {self.kind} slot cannot go from {self.length} to {length} tokens: its window of {self.window} has dropped "
                f"the first {self.dropped}"
            )
        if not 0 <= length <= self.write_pos:
            raise CacheRefused(f"a {self.kind} slot of {self.length} tokens has no length {length}")
        self.write_pos = length

    def _roll(self) -> None:
        """Drops whole tiles in front of the last W - 1 tokens: the next token sees itself and those."""
        drop = max(0, self.write_pos - (self.window - 1)) // TILE * TILE
        kept = self.write_pos - drop
        self.keys[:, :, :kept] = self.keys[:, :, drop : self.write_pos].copy()
        self.values[:, :kept] = self.values[:, drop : self.write_pos].copy()
        self.write_pos, self.dropped = kept, self.dropped + drop
