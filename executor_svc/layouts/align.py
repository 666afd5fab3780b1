"""Alignment of rows with different lengths to one width, and back: where each live run goes, and nowhere else is this decided.

Rows are end-anchored: the live run of row i ends at column T = the greatest length, behind `lead_i = T - L_i` dead columns of
zeros. "Front-aligned" means padded in front. A cohort is given as rows x layers of slots.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from executor_svc.layouts.normal import NormalSlot
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.slot_kinds import KvSlot, SlotKind

I32 = NDArray[np.int32]
Rows = Sequence[Sequence[KvSlot]]


def front_align(lengths: Sequence[int]) -> tuple[int, I32]:
    """(width, dead columns in front of each row, i32)."""
    width = max(lengths, default=0)
    return width, np.array([width - length for length in lengths], np.int32)


def front_pad_single(slot: NormalSlot, *, target: int, into: NormalSlot) -> None:
    """Copies the live run of `slot` into the zeroed columns of `into` so that it ends at `target`. Raises CacheRefused, nothing
    copied, for a target below the live length, for a slot or goal that is not materialised, or a goal that has too few columns.
    """
    live = slot.length
    if target < live:
        raise CacheRefused(f"front_pad_single: {target} columns are fewer than the {live} live ones of a {slot.kind} slot")
    keys, values = slot.arrays()
    goal_keys, goal_values = into.arrays()
    if target > into.capacity:
        raise CacheRefused(f"front_pad_single: column {target} is behind the capacity of {into.capacity} of a {into.kind} slot")
    goal_keys[:, :, target - live : target] = keys[:, :, :live]
    goal_values[:, target - live : target] = values[:, :live]
    into.length = target


def drop_dead_prefix(slot: KvSlot, lead: int) -> None:
    """Undoes alignment: the live run is back at column 0 and the length is the row's own. A view moves, no data does.

    Nothing to do for a lead of 0, nor ever for an xs_rolling slot, which keeps its rows apart and was not aligned. Raises
    CacheRefused, unchanged, for any other kind than normal and for a lead beyond the length.
    """
    if lead == 0 or slot.kind is SlotKind.XS_ROLLING:
        return
    if not isinstance(slot, NormalSlot):
        raise CacheRefused(f"drop_dead_prefix: a {slot.kind} slot has no dead prefix of {lead} columns: it cannot be aligned")
    if not 0 < lead <= slot.length:
        raise CacheRefused(f"drop_dead_prefix: a lead of {lead} is beyond the {slot.length} columns of a {slot.kind} slot")
    keys, values = slot.arrays()
    slot.keys, slot.values = keys[:, :, lead:], values[:, lead:]
    slot.length -= lead


def check_front_align(rows: Rows) -> None:
    """Raises CacheRefused when these rows cannot be aligned; mutates nothing, so that a refusal leaves every cache as it was."""
    for row, layers in enumerate(rows):
        lengths = {slot.length for slot in layers}
        if len(lengths) > 1:
            raise CacheRefused(f"row {row} has layers of {min(lengths)} and {max(lengths)} tokens: its slots disagree")
    num_layers = len(rows[0]) if rows else 0
    for layer in range(num_layers):
        slots = [layers[layer] for layers in rows]
        odd = next((row for row, slot in enumerate(slots) if slot.length != slots[0].length), 0)
        for slot in slots:
            if odd and not slot.supports_per_sequence_len:
                raise CacheRefused(
                    f"layer {layer} has a slot of kind {slot.kind}, which cannot have a length per sequence; row {odd} has "
                    f"{slots[odd].length} tokens, row 0 has {slots[0].length}"
                )
            if isinstance(slot, NormalSlot) and slot.length:
                slot.arrays()


def ensure_uniform_batch_cache_lens(rows: Rows) -> None:
    """Raises CacheRefused unless every row has the length of the first in every layer: what stacking without a grant demands."""
    for layer, first in enumerate(rows[0] if rows else ()):
        for row, layers in enumerate(rows):
            if layers[layer].length != first.length:
                raise CacheRefused(
                    f"layer {layer}: row {row} has {layers[layer].length} tokens where {first.length} were expected, and ragged "
                    "cohorts were not granted"
                )
