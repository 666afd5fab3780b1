"""One forward pass over a ragged batch: embedding, layers, cache. Sampling and the head's rows are the caller's.

Legend: T fed tokens, M = T padded to what the layers want, D head size. Rows T.. are zero padding:
their results are finite and never read.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from executor_svc.model.cache import KvAccess, KvLayout, Rotation
from executor_svc.model.config import ModelConfig
from executor_svc.model.rope import rope_arrays
from executor_svc.model.weights import LayerWeights, ModelWeights
from executor_svc.plan import Batch
from kernels.cpu.gelu_mul import gelu_mul
from kernels.cpu.rms_norm import add_rms_norm, rms_norm
from kernels.cpu.silu_mul import silu_mul

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class Decoder:
    """The model without its sampler. Owns its weights and rotation tables; the cache is lent to each call."""

    def __init__(self, config: ModelConfig, *, weights: ModelWeights, max_model_len: int) -> None:
        self._config = config
        self._weights = weights
        self._rope = rope_arrays(config.rope, head_dim=config.head_dim, num_positions=max_model_len)
        self._local_rope = self._rope
        if config.local_rope is not None:
            self._local_rope = rope_arrays(config.local_rope, head_dim=config.head_dim, num_positions=max_model_len)
        self._scale = (config.query_scalar or config.head_dim) ** -0.5
        self._activate = gelu_mul if config.activation == "gelu_tanh" else silu_mul

    def hidden(self, batch: Batch, *, cache: KvLayout, num_layers: int | None = None) -> torch.Tensor:
        """Writes keys and values of the fed tokens into the cache; gives the final norm's output, f32 [M, hidden].

        `num_layers` stops early, which only warming up wants.
        """
        num_tokens = len(batch.token_ids)
        residual = torch.zeros(self._weights.pad_rows(num_tokens), self._config.hidden_size)
        torch.index_select(self._weights.embedding, 0, torch.from_numpy(batch.token_ids), out=residual[:num_tokens])
        if self._config.embedding_scale != 1:
            residual *= self._config.embedding_scale
        layers, eps = self._weights.layers[:num_layers], self._config.rms_eps
        following = [*(layer.input_norm for layer in layers[1:]), self._weights.norm]
        access = cache.begin(batch)
        x = torch.empty_like(residual)
        rms_norm(residual.numpy(), weight_H=layers[0].input_norm, eps=eps, out_TH=x.numpy())
        for index, (layer, next_norm) in enumerate(zip(layers, following, strict=True)):
            part = layer.out(self._attend(layer, index, x, num_tokens=num_tokens, access=access))
            self._add(part, residual, normed_by=layer.attention_norm, next_norm=layer.post_norm, out=x)
            part = layer.down(self._gate(layer.gate_up(x)))
            self._add(part, residual, normed_by=layer.gated_norm, next_norm=next_norm, out=x)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """f32 [n, num_ids] for n rows of `hidden`, any n."""
        count = hidden.shape[0]
        padding = self._weights.pad_rows(count) - count
        if not padding:
            return self._weights.head(hidden)
        return self._weights.head(torch.nn.functional.pad(hidden, (0, 0, 0, padding)))[:count]

    def _add(self, part: torch.Tensor, residual: torch.Tensor, *, normed_by: F32 | None, next_norm: F32, out: torch.Tensor) -> None:
        """Adds `part`, which is given up, to the residual; `out` = the sum under the next norm."""
        eps, array = self._config.rms_eps, part.numpy()
        if normed_by is not None:
            rms_norm(array, weight_H=normed_by, eps=eps, out_TH=array)
        add_rms_norm(array, residual_TH=residual.numpy(), weight_H=next_norm, eps=eps, out_TH=out.numpy())

    def _attend(self, layer: LayerWeights, index: int, x: torch.Tensor, *, num_tokens: int, access: KvAccess) -> torch.Tensor:
        """Attention output before its projection, f32 [M, heads * D]."""
        config = self._config
        q = np.empty((num_tokens, config.num_heads, config.head_dim), np.float32)
        cos, sin = self._local_rope if layer.window else self._rope
        rotation = Rotation(cos, sin, layer.q_norm, layer.k_norm, config.rms_eps)
        access.write(index, layer.qkv(x).numpy()[:num_tokens], rotation=rotation, q_out=q)
        out = torch.zeros(x.shape[0], config.num_heads * config.head_dim)
        access.attend(index, q, scale=self._scale, window=layer.window, out=out.numpy()[:num_tokens].reshape(q.shape))
        return out

    def _gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        out = torch.empty(gate_up.shape[0], self._config.intermediate_size)
        self._activate(gate_up.numpy(), out_TI=out.numpy())
        return out
