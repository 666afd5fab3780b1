"""The normal slot: every token since the first, keys transposed as the kernels want them."""

from dataclasses import dataclass
from typing import ClassVar

from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.slot_kinds import SlotKind
from kernels.layout import KvArray


@dataclass(slots=True)
class NormalSlot:
    """See `KvSlot`. May be a view of one row of a cohort.

    Attributes:
        keys: [K, D, Y], f32 or f16, or None while nothing was ever written. values: [K, Y, D].
        length: columns in use, from column 0.
    """

    keys: KvArray | None = None
    values: KvArray | None = None
    length: int = 0

    kind: ClassVar[SlotKind] = SlotKind.NORMAL
    supports_per_sequence_len: ClassVar[bool] = True

    @property
    def capacity(self) -> int:
        """Columns there are; 0 while not materialised."""
        return 0 if self.values is None else int(self.values.shape[1])

    def arrays(self) -> tuple[KvArray, KvArray]:
        """(keys, values). Raises CacheRefused when there are none."""
        if self.keys is None or self.values is None:
            raise CacheRefused(f"a {self.kind} slot is not materialised: nothing was ever written into it")
        return self.keys, self.values

    def append(self, keys: KvArray, values: KvArray) -> None:
        """Writes t columns, [K, D, t] and [K, t, D], behind the last one. Raises CacheRefused beyond the capacity."""
        stop = self.length + values.shape[1]
        if stop > self.capacity:
            raise CacheRefused(f"a {self.kind} slot of {self.capacity} columns cannot take column {stop}")
        own_keys, own_values = self.arrays()
        own_keys[:, :, self.length : stop] = keys
        own_values[:, self.length : stop] = values
        self.length = stop

    def set_len(self, length: int) -> None:
        """See `KvSlot`; refuses only what lies outside 0..capacity."""
        if not 0 <= length <= self.capacity:
            raise CacheRefused(f"a {self.kind} slot of {self.capacity} columns has no length {length}")
        self.length = length
