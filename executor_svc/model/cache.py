"""Where a model's keys and values lie: the seam that the decoder sees, and the paged cache behind it.

The decoder asks a `KvLayout` once a batch and then, layer by layer, writes what it fed and attends. It never learns whether a row
lies in blocks or in a dense cohort (`executor_svc.layouts`).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from executor_svc.model.config import ModelConfig
from executor_svc.plan import Batch
from kernels.cpu.paged_attention import paged_attention
from kernels.cpu.rope_kv_write import rope_kv_write
from kernels.layout import BLOCK_SIZE, cache_shapes

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Rotation:
    """What happens to queries and keys on their way: rotary tables f32 [L, E], then per-head norms where a layer has them."""

    cos: F32
    sin: F32
    q_norm: F32 | None
    k_norm: F32 | None
    eps: float


class KvAccess(Protocol):
    """One batch's way to keys and values. Lives for one forward."""

    def write(self, layer: int, qkv: F32, *, rotation: Rotation, q_out: F32) -> None:
        """Stores keys and values of the fed tokens [T, C] in layer `layer`; rotated queries go to `q_out` [T, N, D].

        Positions are the rows' own, whatever a layout puts in front of them.
        """
        ...

    def attend(self, layer: int, q: F32, *, scale: float, window: int, out: F32) -> None:
        """Attention of each fed token over its own row's live tokens, itself included; `window` 0 = all. Nothing else weighs."""
        ...


class KvLayout(Protocol):
    """How rows are kept."""

    def begin(self, batch: Batch) -> KvAccess:
        """Makes ready for the batch. The access is valid until the next call."""
        ...


def block_bytes(config: ModelConfig) -> int:
    """Bytes that one block takes over all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * BLOCK_SIZE * 4


class KvCache:
    """Keys and values, f32, zeroed: memory of blocks that were never used is not claimed from the system yet.

    Attributes:
        keys, values: for each layer an array of `kernels.layout.cache_shapes`.
    """

    def __init__(self, config: ModelConfig, *, num_blocks: int) -> None:
        key_shape, value_shape = cache_shapes(num_blocks, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim)
        self.keys: list[F32] = [np.zeros(key_shape, np.float32) for _ in range(config.num_layers)]
        self.values: list[F32] = [np.zeros(value_shape, np.float32) for _ in range(config.num_layers)]

    def begin(self, batch: Batch) -> "PagedAccess":
        """See `KvLayout`; nothing is moved."""
        return PagedAccess(self, batch)

    def copy(self, source: I32, *, destination: I32) -> None:
        """Copies whole blocks, all read before any is written."""
        if len(source):
            for array in (*self.keys, *self.values):
                array[destination] = array[source]

    @staticmethod
    def slots_of(batch: Batch) -> I32:
        """Where each fed token's key and value belong: block * BLOCK_SIZE + place in the block, i32 [T]."""
        rows = np.repeat(np.arange(len(batch.context_len)), np.diff(batch.query_start))
        blocks = batch.block_tables[rows, batch.positions // BLOCK_SIZE]
        slots: I32 = blocks * np.int32(BLOCK_SIZE) + batch.positions % np.int32(BLOCK_SIZE)
        return slots


class PagedAccess:
    """`KvAccess` to blocks: tables and lengths go into the kernels as they are."""

    def __init__(self, cache: KvCache, batch: Batch) -> None:
        self._cache = cache
        self._batch = batch
        self._slots = cache.slots_of(batch)

    def write(self, layer: int, qkv: F32, *, rotation: Rotation, q_out: F32) -> None:
        """See `KvAccess`."""
        rope_kv_write(
            qkv,
            cos_LE=rotation.cos,
            sin_LE=rotation.sin,
            positions_T=self._batch.positions,
            slot_mapping_T=self._slots,
            k_BKDP=self._cache.keys[layer],
            v_BKPD=self._cache.values[layer],
            q_TND=q_out,
            q_norm_D=rotation.q_norm,
            k_norm_D=rotation.k_norm,
            eps=rotation.eps,
        )

    def attend(self, layer: int, q: F32, *, scale: float, window: int, out: F32) -> None:
        """See `KvAccess`."""
        paged_attention(
            q,
            k_BKDP=self._cache.keys[layer],
            v_BKPD=self._cache.values[layer],
            query_start_R=self._batch.query_start,
            context_len_R=self._batch.context_len,
            block_tables_RW=self._batch.block_tables,
            scale=scale,
            window=window,
            out_TND=out,
        )
