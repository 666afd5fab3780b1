"""The rolling slot: a sliding window that keeps its last W tokens and some slack, and has forgotten the rest for good."""

from typing import Final

import numpy as np

from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.slot_kinds import SlotKind
from executor_svc.model.cache import KvType
from kernels.layout import KvArray

TILE: Final = 16
"""Tokens are dropped in whole tiles, so that attention's tiles stay at absolute positions and no bit depends on when it rolled."""


class RollingSlot:
    """See `KvSlot`. Column j holds the token at position `dropped + j`.

    Attributes:
        keys: [K, D, Y]. values: [K, Y, D], f32 or f16. Y = window and slack, more while a longer chunk lies here.
        window: W, tokens that must stay visible.
        write_pos: column of the next token.
        dropped: tokens that the window has left behind, a multiple of 16.
    """

    kind: Final = SlotKind.ROLLING
    supports_per_sequence_len: Final = False

    def __init__(
        self, *, num_kv_heads: int, head_dim: int, window: int, slack: int = 4 * TILE, kv_type: KvType = np.float32
    ) -> None:
        """Raises ValueError when the slack is too small to roll by whole tiles."""
        if window < 1 or slack < 2 * TILE:
            raise ValueError(f"a rolling slot needs a window and {2 * TILE} columns of slack, got {window} and {slack}")
        self._usual = _whole_tiles(window + slack)
        self.keys: KvArray = np.zeros((num_kv_heads, head_dim, self._usual), kv_type)
        self.values: KvArray = np.zeros((num_kv_heads, self._usual, head_dim), kv_type)
        self.window = window
        self.write_pos = 0
        self.dropped = 0

    @property
    def length(self) -> int:
        """See `KvSlot`: tokens seen."""
        return self.dropped + self.write_pos

    def append(self, keys: KvArray, values: KvArray) -> None:
        """Writes t tokens, [K, D, t] and [K, t, D]; rolls first when they do not fit."""
        count = values.shape[1]
        if self.write_pos + count > self.values.shape[1]:
            self._roll(count)
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

    def num_invisible(self, length: int) -> int:
        """Leading tokens of `length`, whole tiles, that the next one and all after it do not see: it sees itself and W - 1."""
        return max(0, length - (self.window - 1)) // TILE * TILE

    def restore(self, keys: KvArray, values: KvArray, *, dropped: int) -> None:
        """An empty slot becomes one of `dropped` + t tokens that holds the last t, [K, D, t] and [K, t, D]."""
        self.append(keys, values)
        self.dropped = dropped

    def _roll(self, count: int) -> None:
        """Drops what no later token sees, and makes room for `count` tokens, all of which see each other's windows."""
        drop = self.num_invisible(self.write_pos)
        kept = self.write_pos - drop
        columns = max(self._usual, _whole_tiles(kept + count))
        keys, values = self.keys[:, :, drop : self.write_pos], self.values[:, drop : self.write_pos]
        self.keys = np.zeros((*keys.shape[:2], columns), keys.dtype)
        self.values = np.zeros((len(values), columns, values.shape[2]), values.dtype)
        self.keys[:, :, :kept], self.values[:, :kept] = keys, values
        self.write_pos, self.dropped = kept, self.dropped + drop


def _whole_tiles(count: int) -> int:
    return -(-count // TILE) * TILE
