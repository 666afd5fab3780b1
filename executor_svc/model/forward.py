"""One forward pass over a ragged batch: embedding, layers, paged cache. Sampling and the head's rows are the caller's.

Legend: T fed tokens, M = T rounded up to the row counts of `linear.py`, D head size. Rows T.. are zero padding: their results are finite
and never read.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from executor_svc.model.cache import KvCache
from executor_svc.model.config import ModelConfig
from executor_svc.model.linear import round_up_rows
from executor_svc.model.rope import rope_tables
from executor_svc.model.weights import LayerWeights, ModelWeights
from executor_svc.plan import Batch
from kernels.cpu.paged_attention import paged_attention
from kernels.cpu.rms_norm import rms_norm
from kernels.cpu.rope_kv_write import rope_kv_write
from kernels.cpu.silu_mul import silu_mul

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class Decoder:
    """The model without its sampler. Owns its weights and rotation tables; the cache is lent to each call."""

    def __init__(self, config: ModelConfig, *, weights: ModelWeights, max_model_len: int) -> None:
        self._config = config
        self._weights = weights
        cos, sin = rope_tables(config.rope, head_dim=config.head_dim, num_positions=max_model_len)
        self._cos, self._sin = cos.numpy(), sin.numpy()
        self._scale = config.head_dim**-0.5

    def hidden(self, batch: Batch, *, cache: KvCache) -> torch.Tensor:
        """Writes keys and values of the fed tokens into their blocks; the last layer's output, f32 [M, hidden], before the final norm."""
        num_tokens = len(batch.token_ids)
        x = torch.zeros(round_up_rows(num_tokens), self._config.hidden_size)
        torch.index_select(self._weights.embedding, 0, torch.from_numpy(batch.token_ids), out=x[:num_tokens])
        slots = cache.slots_of(batch)
        for index, layer in enumerate(self._weights.layers):
            x += layer.out(self._attend(layer, index, x, batch=batch, slots=slots, cache=cache))
            x += layer.down(self._gate(layer.gate_up(self._norm(x, layer.post_norm))))
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """f32 [n, num_ids] for n rows of `hidden`, any n."""
        count = hidden.shape[0]
        rows = torch.zeros(round_up_rows(count), self._config.hidden_size)
        rows[:count] = hidden
        return self._weights.head(self._norm(rows, self._weights.norm))[:count]

    def _attend(
        self, layer: LayerWeights, index: int, x: torch.Tensor, *, batch: Batch, slots: I32, cache: KvCache
    ) -> torch.Tensor:
        """Attention output before its projection, f32 [M, heads * D]."""
        config, num_tokens = self._config, len(batch.token_ids)
        qkv = layer.qkv(self._norm(x, layer.input_norm))
        q = np.empty((num_tokens, config.num_heads, config.head_dim), np.float32)
        keys, values = cache.keys[index], cache.values[index]
        rope_kv_write(
            qkv.numpy()[:num_tokens],
            cos=self._cos,
            sin=self._sin,
            positions=batch.positions,
            slots=slots,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=config.rms_eps,
            q_out=q,
            k_cache=keys,
            v_cache=values,
        )
        out = torch.zeros(x.shape[0], config.num_heads * config.head_dim)
        paged_attention(
            q,
            k_BKDP=keys,
            v_BKPD=values,
            query_start_R=batch.query_start,
            context_len_R=batch.context_len,
            block_tables_RW=batch.block_tables,
            scale=self._scale,
            window=layer.window,
            out_TND=out.numpy()[:num_tokens].reshape(q.shape),
        )
        return out

    def _norm(self, x: torch.Tensor, weight: F32) -> torch.Tensor:
        out = torch.empty_like(x)
        rms_norm(x.numpy(), weight, self._config.rms_eps, out.numpy())
        return out

    def _gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        out = torch.empty(gate_up.shape[0], self._config.intermediate_size)
        silu_mul(gate_up.numpy(), out.numpy())
        return out
