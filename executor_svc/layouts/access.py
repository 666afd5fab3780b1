"""One batch's way into a cohort: what is fed goes into the cohort's columns, and attention begins behind each row's dead prefix.

Legend: T fed tokens, t of them in each row, N query heads, K kv heads, D head size.
"""

import numpy as np

from executor_svc.layouts.align import I32
from executor_svc.layouts.cohort import Cohort, NormalLayer, RowsLayer
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.rolling import RollingSlot
from executor_svc.layouts.slot_kinds import F32
from executor_svc.model.cache import Rotation
from executor_svc.plan import Batch
from kernels.cpu.attention_rows import RaggedRows, attend_rows, tokens_per_tile
from kernels.cpu.dense_attention import dense_attention, dense_rows
from kernels.cpu.rope_kv_write import rope_kv_write
from kernels.layout import BLOCK_SIZE, KvArray, cache_shapes


class DenseAccess:
    """`KvAccess` to a cohort. Tokens are turned to their rows' own positions (`batch.positions`), then appended: at one column
    shared by all rows of a normal layer, each slot by itself where the layer has rolling ones.
    """

    def __init__(self, cohort: Cohort, rows: I32, *, batch: Batch, fed: int) -> None:
        self._cohort = cohort
        self._batch = batch
        self._rows = rows
        self._lead = np.ascontiguousarray(cohort.lead[rows])
        self._columns = slice(cohort.width, cohort.width + fed)
        self._order: I32 = np.arange(len(batch.token_ids), dtype=np.int32)
        self._scratch: tuple[KvArray, KvArray] | None = None
        self._shared: tuple[tuple[int, ...], RaggedRows] | None = None

    def write(self, layer: int, qkv: F32, *, rotation: Rotation, q_out: F32) -> None:
        """See `KvAccess`."""
        cached = self._cohort.layers[layer]
        blocks = self._scratch_of(q_out, cached)
        rope_kv_write(
            qkv,
            cos_LE=rotation.cos,
            sin_LE=rotation.sin,
            positions_T=self._batch.positions,
            slot_mapping_T=self._order,
            k_BKDP=blocks[0],
            v_BKPD=blocks[1],
            q_TND=q_out,
            q_norm_D=rotation.q_norm,
            k_norm_D=rotation.k_norm,
            eps=rotation.eps,
        )
        keys, values = self._by_row(blocks)
        if isinstance(cached, NormalLayer):
            cached.keys[self._rows, :, :, self._columns] = keys
            cached.values[self._rows, :, self._columns] = values
            return
        for slot, own_keys, own_values in zip(self._rolling(layer, cached), keys, values, strict=True):
            slot.append(own_keys, own_values)

    def attend(self, layer: int, q: F32, *, scale: float, window: int, out: F32) -> None:
        """See `KvAccess`; the mask is the lead, which no shortcut leaves out."""
        cached = self._cohort.layers[layer]
        if isinstance(cached, RowsLayer):
            self._attend_rows(self._rolling(layer, cached), q, scale=scale, window=window, out=out)
            return
        keys, values = cached.keys, cached.values
        rows = self._shared_rows(keys.shape, q.shape[1])
        attend_rows(q, k=keys, v=values, rows=rows, scale=scale, window=window, out_TND=out)

    def _shared_rows(self, shape: tuple[int, ...], num_heads: int) -> RaggedRows:
        """The batch's rows in a normal layer; all of them have one shape."""
        if self._shared is None or self._shared[0] != shape:
            lengths = (self._batch.query_start, self._batch.context_len)
            tile = tokens_per_tile(num_heads, shape[1])
            self._shared = shape, dense_rows(*lengths, self._rows, self._lead, cohort_shape=shape, tile_tokens=tile)
        return self._shared[1]

    def _attend_rows(self, slots: list[RollingSlot], q: F32, *, scale: float, window: int, out: F32) -> None:
        """Row by row: each slot has arrays of its own, whose column 0 is the first position that it has not dropped."""
        starts = self._batch.query_start
        for row, slot in enumerate(slots):
            fed = slice(starts[row], starts[row + 1])
            dense_attention(
                q[fed],
                k_MKDY=slot.keys[None],
                v_MKYD=slot.values[None],
                query_start_R=starts[row : row + 2] - starts[row],
                context_len_R=self._batch.context_len[row : row + 1],
                member_R=np.zeros(1, np.int32),
                lead_R=np.array([-slot.dropped], np.int32),
                scale=scale,
                window=window,
                out_TND=out[fed],
            )

    def _rolling(self, index: int, layer: RowsLayer) -> list[RollingSlot]:
        """The batch's slots in a layer of rolling ones. Raises CacheRefused for any other kind."""
        slots = [layer.slots[row] for row in self._rows.tolist()]
        rolling = [slot for slot in slots if isinstance(slot, RollingSlot)]
        if len(rolling) < len(slots):
            raise CacheRefused(f"layer {index} has slots of kind {slots[0].kind}; this decoder takes normal and rolling ones")
        return rolling

    def _by_row(self, blocks: tuple[KvArray, KvArray]) -> tuple[KvArray, KvArray]:
        """Views of what the blocks hold: keys [R, K, D, t], values [R, K, t, D]."""
        num_tokens, num_rows = len(self._order), len(self._rows)
        heads, dim = blocks[0].shape[1:3]
        keys = blocks[0].transpose(0, 3, 1, 2).reshape(-1, heads, dim)[:num_tokens].reshape(num_rows, -1, heads, dim)
        values = blocks[1].transpose(0, 2, 1, 3).reshape(-1, heads, dim)[:num_tokens].reshape(num_rows, -1, heads, dim)
        return keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3)

    def _scratch_of(self, q: F32, cached: NormalLayer | RowsLayer) -> tuple[KvArray, KvArray]:
        """Blocks for the fed tokens of one layer, in order, from which they go to their columns."""
        if self._scratch is None:
            like = cached.keys[0] if isinstance(cached, NormalLayer) else self._rolling(0, cached)[0].keys
            shapes = cache_shapes(-(-len(self._order) // BLOCK_SIZE), num_kv_heads=len(like), head_dim=q.shape[2])
            self._scratch = (np.zeros(shapes[0], like.dtype), np.zeros(shapes[1], like.dtype))
        return self._scratch
