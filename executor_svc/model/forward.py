"""One forward pass over a ragged batch: embedding, layers, cache. Sampling and the head's rows are the caller's.

Legend: T fed tokens, M = T padded to what the layers want, D head size. Rows T.. are zero padding:
their results are finite and never read.
"""

import numpy as np

from executor_svc.model.after_attention import AfterAttention, Following, Space, after_attention
from executor_svc.model.cache import KvLayout, Rotation
from executor_svc.model.config import ModelConfig
from executor_svc.model.rope import rope_tables
from executor_svc.model.weights import ModelWeights
from executor_svc.plan import Batch
from kernels.cpu.rms_norm import rms_norm
from kernels.layout import F32


class Decoder:
    """The model without its sampler. Owns its weights and rotation tables; the cache is lent to each call."""

    def __init__(self, config: ModelConfig, *, weights: ModelWeights, max_model_len: int) -> None:
        self._config = config
        self._weights = weights
        ropes = (config.rope, config.local_rope or config.rope)
        everywhere, local = (rope_tables(rope, head_dim=config.head_dim, num_positions=max_model_len) for rope in ropes)
        self._rotations = [
            Rotation(*(local if layer.window else everywhere), layer.q_norm, layer.k_norm, config.rms_eps)
            for layer in weights.layers
        ]
        self._scale = (config.query_scalar or config.head_dim) ** -0.5
        self._space = Space(config)
        following = [Following(layer.input_norm, layer.qkv) for layer in weights.layers[1:]]
        self._after = [
            after_attention(layer, behind, config=config, space=self._space)
            for layer, behind in zip(weights.layers[:-1], following, strict=True)
        ]
        self._ends: dict[int, AfterAttention] = {}

    def hidden(self, batch: Batch, *, cache: KvLayout, num_layers: int | None = None) -> F32:
        """Writes keys and values of the fed tokens into the cache; gives the final norm's output, f32 [M, hidden], valid until the
        next call: it may lie in memory that the layers share.

        `num_layers` stops early, which only warming up wants.
        """
        config, num_tokens = self._config, len(batch.token_ids)
        residual = np.zeros((self._weights.pad_rows(num_tokens), config.hidden_size), np.float32)
        residual[:num_tokens] = self._weights.embedding[batch.token_ids]
        if config.embedding_scale != 1:
            residual *= config.embedding_scale
        access = cache.begin(batch)
        layers = self._weights.layers[:num_layers]
        x = np.empty_like(residual)
        rms_norm(residual, weight_H=layers[0].input_norm, eps=config.rms_eps, out_TH=x)
        q = np.empty((num_tokens, config.num_heads, config.head_dim), np.float32)
        attended = np.zeros((len(x), config.num_heads * config.head_dim), np.float32)
        parts = [*self._after[: len(layers) - 1], self._last(len(layers))]
        rows: F32 = layers[0].qkv(x)
        for index, (layer, after) in enumerate(zip(layers, parts, strict=True)):
            access.write(index, rows[:num_tokens], rotation=self._rotations[index], q_out=q)
            access.attend(index, q, scale=self._scale, window=layer.window, out=attended[:num_tokens].reshape(q.shape))
            rows = after(attended, residual)
        return rows

    def logits(self, hidden: F32) -> F32:
        """f32 [n, num_ids] for n rows of `hidden`, any n."""
        count = len(hidden)
        padding = self._weights.pad_rows(count) - count
        rows = np.pad(hidden, ((0, padding), (0, 0))) if padding else hidden
        logits: F32 = self._weights.head(rows)
        return logits[:count]

    def _last(self, num_layers: int) -> AfterAttention:
        """What comes behind the last of so many layers."""
        if num_layers not in self._ends:
            end = Following(self._weights.norm, None)
            layer = self._weights.layers[num_layers - 1]
            self._ends[num_layers] = after_attention(layer, end, config=self._config, space=self._space)
        return self._ends[num_layers]
