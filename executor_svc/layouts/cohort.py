"""The cohort: rows joined into one batched cache, each behind its own dead prefix. It carries the lead itself; nobody else does.

Legend: M members, K kv heads, D head size, Y columns. While a cohort stands all of its rows append at one column, `width`, so a
lead never changes; a row's own length is always `width - lead`, never the width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from executor_svc.layouts.align import I32, Rows, check_front_align, ensure_uniform_batch_cache_lens, front_align, front_pad_single
from executor_svc.layouts.normal import NormalSlot
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.slot_kinds import KvSlot
from executor_svc.model.cache import KvType
from kernels.layout import KvArray

TILE: Final = 16
"""Columns behind the last one that attention may load, though not look at."""
GROWTH: Final = 64
"""Columns by which a cohort grows that has become too narrow: a copy of everything, so not too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """Of one sequence's cache in one layer, what it is stored as, and the most bytes that one cohort may take over all layers."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_bytes: int
    kv_type: KvType = np.float32

    def cohort_bytes(self, num_members: int, columns: int) -> int:
        """Bytes of a cohort of normal slots."""
        token = 2 * np.dtype(self.kv_type).itemsize * self.num_layers * self.num_kv_heads * self.head_dim
        return token * num_members * columns


@dataclass(slots=True)
class NormalLayer:
    """One layer of normal slots side by side: keys [M, K, D, Y], values [M, K, Y, D], f32 or f16."""

    keys: KvArray
    values: KvArray

    @classmethod
    def zeros(cls, shape: KvShape, *, num_members: int, columns: int) -> "NormalLayer":
        """Nothing written yet: dead columns are those that nobody writes."""
        heads, dim = shape.num_kv_heads, shape.head_dim
        return cls(
            np.zeros((num_members, heads, dim, columns), shape.kv_type), np.zeros((num_members, heads, columns, dim), shape.kv_type)
        )

    def slot(self, member: int, *, length: int) -> NormalSlot:
        """The member's columns as a slot: a view."""
        return NormalSlot(self.keys[member], self.values[member], length)


@dataclass(slots=True)
class RowsLayer:
    """One layer of slots that keep rows apart (xs_rolling), or that never differ in length (rolling): the slots themselves."""

    slots: list[KvSlot]

    def slot(self, member: int, *, length: int) -> KvSlot:
        """The member's slot, which knows its own length."""
        return self.slots[member]


class Cohort:
    """A batched cache.

    Attributes:
        members: i32 [M], the slot number of each row.
        lead: i32 [M], dead columns in front of each row.
        width: columns in use, shared by all rows.
        layers: one entry for each layer of the model.
        num_copies: row copies that went into it so far, keys and values counted apart.
    """

    def __init__(self, members: I32, *, lead: I32, width: int, layers: "list[NormalLayer | RowsLayer]", shape: KvShape) -> None:
        self.members = members
        self.lead = lead
        self.width = width
        self.layers = layers
        self.num_copies = 0
        self._shape = shape

    @classmethod
    def join(cls, rows: Rows, *, members: I32, room: int, granted: bool, shape: KvShape, spare: int = 0) -> "Cohort":
        """Copies own caches (rows x layers) into a new cohort with `room` more columns than the longest row, and `spare` more if
        there is memory for them.

        Raises CacheRefused, every own cache unchanged, when the rows differ in length and that was not granted or cannot be, or
        when the cohort would be too large.
        """
        if granted:
            check_front_align(rows)
        else:
            ensure_uniform_batch_cache_lens(rows)
        width, lead = front_align([layers[0].length for layers in rows])
        columns = _columns(width + room, spare=spare, num_members=len(rows), shape=shape)
        cohort = cls(members, lead=lead, width=width, layers=[], shape=shape)
        for slots in zip(*rows, strict=True):
            cohort.layers.append(cohort._join_layer(slots, columns=columns))
        if not any(isinstance(layer, NormalLayer) for layer in cohort.layers):
            cohort.lead = np.zeros_like(lead)
        return cohort

    def own_lengths(self) -> I32:
        """i32 [M]."""
        return np.int32(self.width) - self.lead

    def own(self, member: int) -> list[KvSlot]:
        """The member's cache, layer by layer, as it lies: normal slots are views that still have their dead prefix."""
        return [layer.slot(member, length=self.width) for layer in self.layers]

    def reserve(self, count: int) -> None:
        """Makes sure that `count` more columns fit. Views of the old columns stay valid, and stay behind."""
        normal = [layer for layer in self.layers if isinstance(layer, NormalLayer)]
        if not normal or self.width + count + TILE <= normal[0].values.shape[2]:
            return
        columns = _columns(self.width + count, spare=GROWTH, num_members=len(self.members), shape=self._shape)
        for layer in normal:
            wider = NormalLayer.zeros(self._shape, num_members=len(self.members), columns=columns)
            wider.keys[..., : self.width] = layer.keys[..., : self.width]
            wider.values[:, :, : self.width] = layer.values[:, :, : self.width]
            layer.keys, layer.values = wider.keys, wider.values
        self.num_copies += 2 * len(normal) * len(self.members)

    def roll_back(self, rows: I32, dropped: I32) -> None:
        """Slots that count for themselves give back the tokens that their rows did not keep, i32 [R]."""
        for layer in self.layers:
            if isinstance(layer, RowsLayer):
                for row, count in zip(rows.tolist(), dropped.tolist(), strict=True):
                    layer.slots[row].set_len(layer.slots[row].length - count)

    def _join_layer(self, slots: Sequence[KvSlot], *, columns: int) -> "NormalLayer | RowsLayer":
        normal = [slot for slot in slots if isinstance(slot, NormalSlot)]
        if len(normal) < len(slots):
            return RowsLayer(list(slots))
        layer = NormalLayer.zeros(self._shape, num_members=len(normal), columns=columns)
        for member, slot in enumerate(normal):
            if slot.length:
                front_pad_single(slot, target=self.width, into=layer.slot(member, length=0))
                self.num_copies += 2
        return layer


def _columns(count: int, *, spare: int, num_members: int, shape: KvShape) -> int:
    """Columns to allocate for `count`, and for `spare` more where they fit: growing less at a time costs copies, a refusal would
    end every row. Raises CacheRefused when `count` take too much memory.
    """
    for wanted in (count + spare, count):
        columns = -(-wanted // TILE) * TILE + TILE
        needed = shape.cohort_bytes(num_members, columns)
        if needed <= shape.max_bytes:
            return columns
    raise CacheRefused(
        f"a cohort of {num_members} rows and {columns} columns takes {needed} bytes, the cache has {shape.max_bytes}; "
        "rows as long as the longest one are the price of a dense layout"
    )
