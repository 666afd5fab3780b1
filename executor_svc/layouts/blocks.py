"""Between dense caches and the paged one: what the prefix cache keeps of a dense row, and how a hit becomes a row's own cache.

Only live columns are kept, by the row's own length, as soon as they fill a block: so what is stored never holds a dead prefix,
whether the row ends next or not, and there is nothing to strip when it does.
"""

import numpy as np

from executor_svc.layouts.align import I32
from executor_svc.layouts.cohort import Cohort, NormalLayer, RowsLayer
from executor_svc.layouts.normal import NormalSlot
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.rolling import RollingSlot
from executor_svc.layouts.slot_kinds import KvSlot
from executor_svc.model.cache import KvCache
from executor_svc.plan import Batch
from kernels.layout import BLOCK_SIZE, KvArray


def keep_blocks(blocks: KvCache, *, cohort: Cohort, rows: I32, own: I32, batch: Batch) -> None:
    """Copies the blocks that this step filled, of rows whose table names them. `own`: i32 [R], each row's own length now."""
    starts = batch.positions[batch.query_start[:-1]]
    for index in np.flatnonzero(own // BLOCK_SIZE > starts // BLOCK_SIZE).tolist():
        first, stop = int(starts[index]) // BLOCK_SIZE, int(own[index]) // BLOCK_SIZE
        named = batch.block_tables[index, first:stop]
        if len(named) < stop - first or (named < 0).any():
            continue
        member, lead = int(rows[index]), int(cohort.lead[rows[index]])
        for layer, cached in enumerate(cohort.layers):
            if (held := _held(cached, member, lead=lead)) is not None:
                keys, values, zero = held
                columns = slice(zero + first * BLOCK_SIZE, zero + stop * BLOCK_SIZE)
                keys, values = keys[:, :, columns], values[:, columns]
                heads, dim = keys.shape[:2]
                blocks.keys[layer][named] = keys.reshape(heads, dim, -1, BLOCK_SIZE).transpose(2, 0, 1, 3)
                blocks.values[layer][named] = values.reshape(heads, -1, BLOCK_SIZE, dim).transpose(1, 0, 2, 3)


def _held(layer: NormalLayer | RowsLayer, member: int, *, lead: int) -> tuple[KvArray, KvArray, int] | None:
    """(keys [K, D, Y], values [K, Y, D], column of the row's position 0) of what blocks can hold. A rolling slot has dropped
    whole tiles in front of its window, never of a block that this step filled.
    """
    if isinstance(layer, NormalLayer):
        return layer.keys[member], layer.values[member], lead
    slot = layer.slots[member]
    return (slot.keys, slot.values, -slot.dropped) if isinstance(slot, RollingSlot) else None


def read_blocks(blocks: KvCache, *, table: I32, length: int, empty: list[KvSlot]) -> list[KvSlot]:
    """An own cache of `length` tokens, whole blocks, from the blocks of a prefix hit. Raises CacheRefused for anything else.

    `empty`: a fresh sequence's slots, one a layer, which say the kinds; rolling ones are filled as far back as their window.
    """
    count = length // BLOCK_SIZE
    named = table[:count]
    if length % BLOCK_SIZE or len(named) < count or (named < 0).any():
        raise CacheRefused(f"a row starts at {length}, but no cache of its own holds that many tokens and no whole blocks do")
    slots: list[KvSlot] = []
    for slot, keys, values in zip(empty, blocks.keys, blocks.values, strict=True):
        heads, dim = keys.shape[1:3]
        dropped = slot.num_invisible(length) if isinstance(slot, RollingSlot) else 0
        seen = named[dropped // BLOCK_SIZE :]
        own_keys = np.ascontiguousarray(keys[seen].transpose(1, 2, 0, 3).reshape(heads, dim, length - dropped))
        own_values = np.ascontiguousarray(values[seen].transpose(1, 0, 2, 3).reshape(heads, length - dropped, dim))
        if isinstance(slot, RollingSlot):
            slot.restore(own_keys, own_values, dropped=dropped)
            slots.append(slot)
        else:
            slots.append(NormalSlot(own_keys, own_values, length))
    return slots
