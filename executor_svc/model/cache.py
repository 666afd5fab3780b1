"""Where a model's keys and values lie: the seam that the decoder sees, and the paged cache behind it.

The decoder asks a `KvLayout` once a batch and then, layer by layer, writes what it fed and attends. It never learns whether a row
lies in blocks or in a dense cohort (`executor_svc.layouts`).
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from executor_svc.model.config import ModelConfig
from executor_svc.model.memory import claimed
from executor_svc.plan import Batch
from kernels.cpu.attention_rows import attend_rows, tokens_per_tile
from kernels.cpu.paged_attention import paged_rows
from kernels.cpu.rope_kv_write import rope_kv_write
from kernels.layout import BLOCK_SIZE, KvArray, cache_shapes

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


class Fed(Protocol):
    """What a paged cache must know of a batch; columns as in `executor_svc.plan.Batch`."""

    @property
    def positions(self) -> I32: ...
    @property
    def query_start(self) -> I32: ...
    @property
    def context_len(self) -> I32: ...
    @property
    def block_tables(self) -> I32: ...


class KvLayout(Protocol):
    """How rows are kept."""

    def begin(self, batch: Batch) -> KvAccess:
        """Makes ready for the batch. The access is valid until the next call."""
        ...


KvType = type[np.floating[Any]]
"""What keys and values are stored as."""


def block_bytes(config: ModelConfig, *, kv_type: KvType) -> int:
    """Bytes that one block takes over all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * BLOCK_SIZE * np.dtype(kv_type).itemsize


class KvCache:
    """Keys and values, zeroed, their memory claimed from the system.

    Attributes:
        keys, values: for each layer an array of `kernels.layout.cache_shapes`, f32 or f16.
        kv_type: that of all these arrays.
        tile_tokens: query tokens that share a loaded tile of keys.
    """

    def __init__(self, config: ModelConfig, *, num_blocks: int, kv_type: KvType = np.float32) -> None:
        key_shape, value_shape = cache_shapes(num_blocks, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim)
        self.keys: list[KvArray] = claimed(config.num_layers, key_shape, kv_type)
        self.values: list[KvArray] = claimed(config.num_layers, value_shape, kv_type)
        self.kv_type = kv_type
        self.tile_tokens = tokens_per_tile(config.num_heads, config.num_kv_heads)

    def begin(self, batch: Fed) -> "PagedAccess":
        """See `KvLayout`; nothing is moved."""
        return PagedAccess(self, batch)

    def copy(self, source: I32, *, destination: I32) -> None:
        """Copies whole blocks, all read before any is written."""
        if len(source):
            for array in (*self.keys, *self.values):
                array[destination] = array[source]

    @staticmethod
    def slots_of(batch: Fed) -> I32:
        """Where each fed token's key and value belong: block * BLOCK_SIZE + place in the block, i32 [T]."""
        rows = np.repeat(np.arange(len(batch.context_len)), np.diff(batch.query_start))
        blocks = batch.block_tables[rows, batch.positions // BLOCK_SIZE]
        slots: I32 = blocks * np.int32(BLOCK_SIZE) + batch.positions % np.int32(BLOCK_SIZE)
        return slots


class PagedAccess:
    """`KvAccess` to blocks: tables and lengths go into the kernels as they are."""

    def __init__(self, cache: KvCache, batch: Fed) -> None:
        self._cache = cache
        self._batch = batch
        self._slots = cache.slots_of(batch)
        self._rows = paged_rows(
            batch.query_start,
            batch.context_len,
            batch.block_tables,
            cache_shape=cache.keys[0].shape,
            tile_tokens=cache.tile_tokens,
        )

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

    def attend(self, layer: int, q: F32, *, scale: float, window: int, out: F32, begin: int = 0) -> None:
        """See `KvAccess`. Positions before `begin` are not there."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        attend_rows(q, k=keys, v=values, rows=self._rows, scale=scale, window=window, out_TND=out, begin=begin)
