"""Keys and values on the device: for each layer two arrays [B, K, BLOCK_SIZE, D], zeroed, in the type of the hidden states."""

import torch

from executor_svc.model.config import ModelConfig
from kernels.layout import BLOCK_SIZE


class DeviceKvCache:
    """Owns the blocks.

    Attributes:
        keys, values: of each layer. Zeroed: what a block holds behind a row's last token is multiplied by 0, and 0 x NaN is NaN.
    """

    def __init__(self, config: ModelConfig, *, num_blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (num_blocks, config.num_kv_heads, BLOCK_SIZE, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]


def block_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes that one block takes over all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * BLOCK_SIZE * dtype.itemsize
