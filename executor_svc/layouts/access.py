"""One batch's way into a cohort: what is fed goes into the shared columns, and attention begins behind each row's dead prefix."""

import numpy as np

from executor_svc.layouts.align import I32
from executor_svc.layouts.cohort import Cohort, NormalLayer
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.layouts.slot_kinds import F32
from executor_svc.model.cache import Rotation
from executor_svc.plan import Batch
from kernels.cpu.dense_attention import dense_attention
from kernels.cpu.rope_kv_write import rope_kv_write
from kernels.layout import BLOCK_SIZE, cache_shapes


class DenseAccess:
    """`KvAccess` to a cohort. Tokens are turned to their rows' own positions (`batch.positions`), then appended at one column."""

    def __init__(self, cohort: Cohort, rows: I32, *, batch: Batch, fed: int) -> None:
        self._cohort = cohort
        self._batch = batch
        self._rows = rows
        self._lead = np.ascontiguousarray(cohort.lead[rows])
        self._columns = slice(cohort.width, cohort.width + fed)
        self._order: I32 = np.arange(len(batch.token_ids), dtype=np.int32)
        self._scratch: tuple[F32, F32] | None = None

    def write(self, layer: int, qkv: F32, *, rotation: Rotation, q_out: F32) -> None:
        """See `KvAccess`."""
        cached = self._layer(layer)
        keys, values = self._scratch_of(cached)
        rope_kv_write(
            qkv,
            cos_LE=rotation.cos,
            sin_LE=rotation.sin,
            positions_T=self._batch.positions,
            slot_mapping_T=self._order,
            k_BKDP=keys,
            v_BKPD=values,
            q_TND=q_out,
            q_norm_D=rotation.q_norm,
            k_norm_D=rotation.k_norm,
            eps=rotation.eps,
        )
        num_rows, num_tokens, rows = len(self._rows), len(self._order), self._rows
        heads, dim = keys.shape[1:3]
        by_token = keys.transpose(0, 3, 1, 2).reshape(-1, heads, dim)[:num_tokens].reshape(num_rows, -1, heads, dim)
        cached.keys[rows, :, :, self._columns] = by_token.transpose(0, 2, 3, 1)
        by_token = values.transpose(0, 2, 1, 3).reshape(-1, heads, dim)[:num_tokens].reshape(num_rows, -1, heads, dim)
        cached.values[rows, :, self._columns] = by_token.transpose(0, 2, 1, 3)

    def attend(self, layer: int, q: F32, *, scale: float, window: int, out: F32) -> None:
        """See `KvAccess`; the mask is the lead, which no shortcut leaves out."""
        cached = self._layer(layer)
        dense_attention(
            q,
            k_MKDY=cached.keys,
            v_MKYD=cached.values,
            query_start_R=self._batch.query_start,
            context_len_R=self._batch.context_len,
            member_R=self._rows,
            lead_R=self._lead,
            scale=scale,
            window=window,
            out_TND=out,
        )

    def _layer(self, index: int) -> NormalLayer:
        layer = self._cohort.layers[index]
        if not isinstance(layer, NormalLayer):
            raise CacheRefused(f"layer {index} has slots of kind {layer.slots[0].kind}; this decoder attends over normal ones")
        return layer

    def _scratch_of(self, layer: NormalLayer) -> tuple[F32, F32]:
        """Blocks for the fed tokens of one layer, in order, from which they go to their columns."""
        if self._scratch is None:
            num_blocks = -(-len(self._order) // BLOCK_SIZE)
            shapes = cache_shapes(num_blocks, num_kv_heads=layer.keys.shape[1], head_dim=layer.keys.shape[2])
            self._scratch = (np.zeros(shapes[0], np.float32), np.zeros(shapes[1], np.float32))
        return self._scratch
