"""The kinds of cache slot, and what every one of them must say of itself.

A slot is one layer's cache of one sequence. Its own length is the only record of how many tokens it holds: nobody keeps a second
one beside it. Legend for all kinds: K kv heads, D head size, Y columns.
"""

from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class SlotKind(StrEnum):
    """Names as they stand in refusals, logs and metrics."""

    NORMAL = "normal"
    ROLLING = "rolling"
    XS_ROLLING = "xs_rolling"


class KvSlot(Protocol):
    """One layer's cache of one sequence."""

    @property
    def kind(self) -> SlotKind:
        """What it is."""
        ...

    @property
    def supports_per_sequence_len(self) -> bool:
        """Whether batch mates may have other lengths, by alignment or because its kind keeps rows apart anyway."""
        ...

    @property
    def length(self) -> int:
        """Tokens that it holds or has seen: the position of the next one, dead columns in front included until they are dropped."""
        ...

    def set_len(self, length: int) -> None:
        """Rolls back to `length` tokens; what lay behind is overwritten later. Raises CacheRefused, unchanged, when it cannot."""
        ...
