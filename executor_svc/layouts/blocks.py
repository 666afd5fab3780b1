"""Between dense caches and the paged one: what the prefix cache keeps of a dense row, and how a hit becomes a row's own cache.

Only live columns are kept, by the row's own length, as soon as they fill a block: so what is stored never holds a dead prefix,
whether the row ends next or not, and there is nothing to strip when it does.
"""

import numpy as np

from executor_svc.layouts.align import I32
from executor_svc.layouts.cohort import Cohort, NormalLayer
from executor_svc.layouts.normal import NormalSlot
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.slot_kinds import KvSlot
from executor_svc.model.cache import KvCache
from executor_svc.plan import Batch
from kernels.layout import BLOCK_SIZE


def keep_blocks(blocks: KvCache, *, cohort: Cohort, rows: I32, own: I32, batch: Batch) -> None:
    """Copies the blocks that this step filled, of rows whose table names them. `own`: i32 [R], each row's own length now."""
    starts = batch.positions[batch.query_start[:-1]]
    for index in np.flatnonzero(own // BLOCK_SIZE > starts // BLOCK_SIZE).tolist():
        first, stop = int(starts[index]) // BLOCK_SIZE, int(own[index]) // BLOCK_SIZE
        named = batch.block_tables[index, first:stop]
        if len(named) < stop - first or (named < 0).any():
            continue
        member, lead = int(rows[index]), int(cohort.lead[rows[index]])
        columns = slice(lead + first * BLOCK_SIZE, lead + stop * BLOCK_SIZE)
        for layer, cached in enumerate(cohort.layers):
            if isinstance(cached, NormalLayer):
                keys, values = cached.keys[member, :, :, columns], cached.values[member, :, columns]
                heads, dim = keys.shape[:2]
                blocks.keys[layer][named] = keys.reshape(heads, dim, -1, BLOCK_SIZE).transpose(2, 0, 1, 3)
                blocks.values[layer][named] = values.reshape(heads, -1, BLOCK_SIZE, dim).transpose(1, 0, 2, 3)


def read_blocks(blocks: KvCache, *, table: I32, length: int) -> list[KvSlot]:
    """An own cache of `length` tokens, whole blocks, from the blocks of a prefix hit. Raises CacheRefused for anything else."""
    count = length // BLOCK_SIZE
    named = table[:count]
    if length % BLOCK_SIZE or len(named) < count or (named < 0).any():
        raise CacheRefused(f"a row starts at {length}, but no cache of its own holds that many tokens and no whole blocks do")
    slots: list[KvSlot] = []
    for keys, values in zip(blocks.keys, blocks.values, strict=True):
        heads, dim = keys.shape[1:3]
        own_keys = keys[named].transpose(1, 2, 0, 3).reshape(heads, dim, length)
        own_values = values[named].transpose(1, 0, 2, 3).reshape(heads, length, dim)
        slots.append(NormalSlot(np.ascontiguousarray(own_keys), np.ascontiguousarray(own_values), length))
    return slots
