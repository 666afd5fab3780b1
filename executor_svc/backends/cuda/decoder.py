"""One forward pass on the device: products in torch, the rest in our kernels. Nothing in it looks at values: it can be captured.

Legend: T fed tokens (padding included), H hidden size, N query heads, K kv heads, D head size, C = (N + 2K) D.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from executor_svc.backends.cuda.cache import DeviceKvCache
from executor_svc.backends.cuda.inputs import Fed
from executor_svc.backends.cuda.place import Place
from executor_svc.model.config import ModelConfig
from executor_svc.model.linear import Linear
from executor_svc.model.rope import rope_tables
from executor_svc.model.weights import LayerWeights, ModelWeights
from kernels.cuda.gated_mul import gated_mul
from kernels.cuda.paged_attention import PagedAttention
from kernels.cuda.rms_norm import rms_norm
from kernels.cuda.rope_kv_write import rope_kv_write

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one step can have."""

    max_rows: int
    max_tokens: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """One layer's tensors; norms are f32 [H] or [D], None where the layer has none. Meanings as in `LayerWeights`."""

    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Linear
    attention_norm: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    gated_norm: torch.Tensor | None
    window: int


class DeviceDecoder:
    """The model without its sampler. Owns weights, rotation tables and workspaces; the cache is lent to each call."""

    def __init__(self, config: ModelConfig, *, weights: ModelWeights, dtype: torch.dtype, place: Place, limits: Limits) -> None:
        self._config = config
        self._kernels = place.kernels
        self._embedding = torch.from_numpy(weights.embedding).to(place.device, dtype)
        self._head = weights.head
        self._norm = torch.from_numpy(weights.norm).to(place.device)
        self._layers = [_on_device(layer, place.device) for layer in weights.layers]
        self._scale = (config.query_scalar or config.head_dim) ** -0.5
        ropes = [rope for rope in (config.rope, config.local_rope) if rope is not None]
        tables = [rope_tables(rope, head_dim=config.head_dim, num_positions=limits.max_model_len) for rope in ropes]
        self._rotations = [tuple(torch.from_numpy(part).to(place.device) for part in table) for table in tables]
        self._attention = {
            window: _Attention(config, window, dtype=dtype, place=place, limits=limits) for window in {*config.windows}
        }

    def hidden(self, fed: Fed, *, cache: DeviceKvCache) -> torch.Tensor:
        """Writes keys and values of the fed tokens into the cache; gives the final norm's output [T, H]."""
        config = self._config
        residual = torch.nn.functional.embedding(fed.token_ids, self._embedding)
        if config.embedding_scale != 1:
            residual *= config.embedding_scale
        normed = torch.empty_like(residual)
        rms_norm(self._kernels, residual, weight=self._layers[0].input_norm, eps=config.rms_eps, out=normed)
        for attention in self._attention.values():
            attention.plan(fed)
        queries = residual.new_empty(len(residual), config.num_heads, config.head_dim)
        following = [*(layer.input_norm for layer in self._layers[1:]), self._norm]
        for index, (layer, next_norm) in enumerate(zip(self._layers, following, strict=True)):
            attended = self._attend(index, layer, normed, fed=fed, cache=cache, queries=queries)
            self._add(layer.out(attended), residual, normed_by=layer.attention_norm, next_norm=layer.post_norm, out=normed)
            gate_up = layer.gate_up(normed)
            gated = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
            gated_mul(self._kernels, gate_up, activation=config.activation, out=gated)
            self._add(layer.down(gated), residual, normed_by=layer.gated_norm, next_norm=next_norm, out=normed)
        return normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, num_ids] for n rows of `hidden`, in the type of the weights."""
        logits: torch.Tensor = self._head(hidden)
        return logits

    def _attend(
        self, index: int, layer: DeviceLayer, x: torch.Tensor, *, fed: Fed, cache: DeviceKvCache, queries: torch.Tensor
    ) -> torch.Tensor:
        """Projection, rotation, cache and attention of one layer: [T, N D]."""
        config, keys, values = self._config, cache.keys[index], cache.values[index]
        cos, sin = self._rotations[-1 if layer.window else 0]
        rope_kv_write(
            self._kernels,
            layer.qkv(x),
            cos=cos,
            sin=sin,
            positions=fed.positions,
            slot_mapping=fed.slot_mapping,
            k=keys,
            v=values,
            num_heads=config.num_heads,
            q_out=queries,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=config.rms_eps,
        )
        attended = torch.empty_like(queries)
        self._attention[layer.window].attend(queries, keys, values, fed=fed, scale=self._scale, out=attended)
        return attended.view(len(x), -1)

    def _add(
        self,
        part: torch.Tensor,
        residual: torch.Tensor,
        *,
        normed_by: torch.Tensor | None,
        next_norm: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Adds `part` to the residual; `out` = the sum under the next norm."""
        eps = self._config.rms_eps
        if normed_by is not None:
            normed = torch.empty_like(part)
            rms_norm(self._kernels, part, weight=normed_by, eps=eps, out=normed)
            part = normed
        rms_norm(self._kernels, part, weight=next_norm, eps=eps, out=out, residual=residual)


class _Attention:
    """Attention with one window, and its workspace."""

    def __init__(self, config: ModelConfig, window: int, *, dtype: torch.dtype, place: Place, limits: Limits) -> None:
        self._kernels = place.kernels
        self._attention = PagedAttention(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=str(dtype).removeprefix("torch."),
            max_rows=limits.max_rows,
            max_tokens=limits.max_tokens,
            max_context=limits.max_model_len,
            window=window,
        )
        self._workspace = {
            name: torch.zeros(shape, dtype=getattr(torch, kind), device=place.device)
            for name, (shape, kind) in self._attention.workspace.items()
        }
        for kernel in self._attention.kernels:
            place.kernels.prepare(kernel)

    def plan(self, fed: Fed) -> None:
        """Once a step, before any layer."""
        lengths = {"query_start": fed.query_start, "context_len": fed.context_len}
        self._attention.plan(self._kernels, **lengths, workspace=self._workspace)

    def attend(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, fed: Fed, scale: float, out: torch.Tensor
    ) -> None:
        """One layer."""
        self._attention.attend(
            self._kernels,
            q,
            k=keys,
            v=values,
            block_tables=fed.block_tables,
            query_start=fed.query_start,
            context_len=fed.context_len,
            workspace=self._workspace,
            longest=fed.longest,
            scale=scale,
            out=out,
        )


def _on_device(layer: LayerWeights, device: torch.device) -> DeviceLayer:
    def moved(norm: F32 | None) -> torch.Tensor | None:
        return None if norm is None else torch.from_numpy(norm).to(device)

    return DeviceLayer(
        input_norm=torch.from_numpy(layer.input_norm).to(device),
        qkv=layer.qkv,
        q_norm=moved(layer.q_norm),
        k_norm=moved(layer.k_norm),
        out=layer.out,
        attention_norm=moved(layer.attention_norm),
        post_norm=torch.from_numpy(layer.post_norm).to(device),
        gate_up=layer.gate_up,
        down=layer.down,
        gated_norm=moved(layer.gated_norm),
        window=layer.window,
    )
