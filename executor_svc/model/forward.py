"""One forward pass over a ragged batch: embedding, layers, cache. Sampling and the head's rows are the caller's.

Legend: T fed tokens, M = T padded to what the layers want, D head size. Rows T.. are zero padding:
their results are finite and never read.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from executor_svc.model.cache import KvAccess, KvLayout, Rotation
from executor_svc.model.config import ModelConfig
from executor_svc.model.rope import rope_tables
from executor_svc.model.weights import LayerWeights, ModelWeights
from executor_svc.plan import Batch
from kernels.cpu.rms_norm import add_rms_norm, rms_norm
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

    def hidden(self, batch: Batch, *, cache: KvLayout, num_layers: int | None = None) -> torch.Tensor:
        """Writes keys and values of the fed tokens into the cache; gives the final norm's output, f32 [M, hidden].

        `num_layers` stops early, which only warming up wants.
        """
        num_tokens = len(batch.token_ids)
        residual = torch.zeros(self._weights.pad_rows(num_tokens), self._config.hidden_size)
        torch.index_select(self._weights.embedding, 0, torch.from_numpy(batch.token_ids), out=residual[:num_tokens])
        layers, eps = self._weights.layers[:num_layers], self._config.rms_eps
        following = [*(layer.input_norm for layer in layers[1:]), self._weights.norm]
        access = cache.begin(batch)
        x = torch.empty_like(residual)
        rms_norm(residual.numpy(), weight_H=layers[0].input_norm, eps=eps, out_TH=x.numpy())
        for index, (layer, next_norm) in enumerate(zip(layers, following, strict=True)):
            part = layer.out(self._attend(layer, index, x, num_tokens=num_tokens, access=access))
            add_rms_norm(part.numpy(), residual_TH=residual.numpy(), weight_H=layer.post_norm, eps=eps, out_TH=x.numpy())
            part = layer.down(self._gate(layer.gate_up(x)))
            add_rms_norm(part.numpy(), residual_TH=residual.numpy(), weight_H=next_norm, eps=eps, out_TH=x.numpy())
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """f32 [n, num_ids] for n rows of `hidden`, any n."""
        count = hidden.shape[0]
        padding = self._weights.pad_rows(count) - count
        if not padding:
            return self._weights.head(hidden)
        return self._weights.head(torch.nn.functional.pad(hidden, (0, 0, 0, padding)))[:count]

    def _attend(self, layer: LayerWeights, index: int, x: torch.Tensor, *, num_tokens: int, access: KvAccess) -> torch.Tensor:
        """Attention output before its projection, f32 [M, heads * D]."""
        config = self._config
        q = np.empty((num_tokens, config.num_heads, config.head_dim), np.float32)
        rotation = Rotation(self._cos, self._sin, layer.q_norm, layer.k_norm, config.rms_eps)
        access.write(index, layer.qkv(x).numpy()[:num_tokens], rotation=rotation, q_out=q)
        out = torch.zeros(x.shape[0], config.num_heads * config.head_dim)
        access.attend(index, q, scale=self._scale, window=layer.window, out=out.numpy()[:num_tokens].reshape(q.shape))
        return out

    def _gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        out = torch.empty(gate_up.shape[0], self._config.intermediate_size)
        silu_mul(gate_up.numpy(), out_TI=out.numpy())
        return out
