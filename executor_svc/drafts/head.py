"""A draft head as the processor runs it: the same layers and kernels as the target's, one of each.

Legend: T positions, H hidden size, V tokens that can be drafted.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from executor_svc.model.after_attention import AfterAttention, Following, Space, after_attention
from executor_svc.model.cache import Fed, KvCache, Rotation
from executor_svc.model.config import ModelConfig
from executor_svc.model.linear import Linear
from executor_svc.model.precision import Precision
from executor_svc.model.rope import rope_tables
from executor_svc.model.source import TensorSource
from executor_svc.model.weights import LayerWeights, load_head, load_layer
from kernels.cpu.rms_norm import rms_norm
from kernels.layout import F32, I32

NEVER: Final = np.float32(-1e30)
"""Logit of a token that the head does not know: finite, as the sampler demands, and never chosen."""


class HeadSource(TensorSource, Protocol):
    """Where a head's tensors come from, under the names of `head_file`.

    Attributes:
        config: the shape of its one layer, which has the number 0.
        begin: the first position that its attention sees.
        token_ids: i32 [V], what it can draft, rising.
    """

    begin: int
    config: ModelConfig

    @property
    def token_ids(self) -> I32: ...


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """Everything that is multiplied. `embedding`: the target's, f32 [vocab, H]; `token_ids`: i32 [V], what `head` gives logits of;
    `config`, `begin`: as in `HeadSource`."""

    embedding: F32
    hidden_norm: F32
    embed_norm: F32
    proj: Linear
    layer: LayerWeights
    norm: F32
    head: Linear
    token_ids: I32
    config: ModelConfig
    begin: int


def load_head_weights(
    source: HeadSource, *, target: TensorSource, embedding: F32, config: ModelConfig, precision: Precision
) -> HeadWeights:
    """The head's own tensors, and the rows of the target's output head for what it can draft."""
    return HeadWeights(
        embedding=embedding,
        hidden_norm=source.load("hidden_norm.weight"),
        embed_norm=source.load("embed_norm.weight"),
        proj=precision.make(source.load("proj.weight"), None),
        layer=load_layer(source, 0, config=source.config, precision=precision),
        norm=source.load("norm.weight"),
        head=load_head(target, config=config, ids=source.token_ids.astype(np.intp), embedding=embedding, precision=precision),
        token_ids=source.token_ids,
        config=source.config,
        begin=source.begin,
    )


class DraftHead:
    """One decoder layer with an input of its own. Owns its workspace."""

    def __init__(self, weights: HeadWeights, *, precision: Precision, max_model_len: int) -> None:
        self._weights = weights
        self._config = one = weights.config
        self._pad_rows = precision.pad_rows
        cos, sin = rope_tables(one.rope, head_dim=one.head_dim, num_positions=max_model_len)
        self._rotation = Rotation(cos, sin, weights.layer.q_norm, weights.layer.k_norm, one.rms_eps)
        self._scale = (one.query_scalar or one.head_dim) ** -0.5
        self._wide: F32 = np.zeros((0, 0), np.float32)
        self._after: AfterAttention = after_attention(weights.layer, Following(weights.norm, None), config=one, space=Space(one))

    @property
    def token_ids(self) -> I32:
        """What it gives logits of, rising."""
        return self._weights.token_ids

    def run(self, before: F32, token_ids: I32, *, fed: Fed, cache: KvCache) -> F32:
        """States g, f32 [T, H], the caller's own, for the states `before` each token, f32 [T, H], and the tokens, i32 [T].

        Writes the positions' keys and values into `cache`, layer 0.
        """
        weights, config, count = self._weights, self._config, len(token_ids)
        hidden = config.hidden_size
        pair = np.zeros((self._pad_rows(count), 2 * hidden), np.float32)
        normed = np.empty((count, hidden), np.float32)
        rms_norm(before, weight_H=weights.hidden_norm, eps=config.rms_eps, out_TH=normed)
        pair[:count, :hidden] = normed
        rms_norm(weights.embedding[token_ids], weight_H=weights.embed_norm, eps=config.rms_eps, out_TH=normed)
        pair[:count, hidden:] = normed
        residual = np.ascontiguousarray(weights.proj(pair))
        x = np.empty_like(residual)
        rms_norm(residual, weight_H=weights.layer.input_norm, eps=config.rms_eps, out_TH=x)
        q = np.empty((count, config.num_heads, config.head_dim), np.float32)
        attended = np.zeros((len(x), config.num_heads * config.head_dim), np.float32)
        access = cache.begin(fed)
        access.write(0, weights.layer.qkv(x)[:count], rotation=self._rotation, q_out=q)
        access.attend(0, q, scale=self._scale, window=0, out=attended[:count].reshape(q.shape), begin=weights.begin)
        states: F32 = self._after(attended, residual)[:count].copy()
        return states

    def scores(self, states: F32) -> F32:
        """f32 [n, V] for n states: logits of what it drafts, in the order of `token_ids`."""
        count = len(states)
        rows = np.zeros((self._pad_rows(count), states.shape[1]), np.float32)
        rows[:count] = states
        scores: F32 = self._weights.head(rows)[:count]
        return scores

    def logits(self, states: F32) -> F32:
        """f32 [n, vocab] for n states: NEVER for tokens that it does not draft. Valid until the next call."""
        count = len(states)
        if count > len(self._wide):
            self._wide = np.full((count, len(self._weights.embedding)), NEVER, np.float32)
        logits = self._wide[:count]
        logits[:, self._weights.token_ids] = self.scores(states)
        return logits
