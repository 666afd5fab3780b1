"""The paged KV cache of one model: two arrays a layer, in the layout that the kernels read."""

import numpy as np
from numpy.typing import NDArray

from executor_svc.model.config import ModelConfig
from executor_svc.plan import Batch
from kernels.layout import BLOCK_SIZE, cache_shapes

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


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
