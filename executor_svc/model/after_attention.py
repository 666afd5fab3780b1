"""From the output of one layer's attention to the input of the next one's: part by part, or in one call for int8.

Legend: M rows, A the heads' output elements, H hidden, C query, key and value elements.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from executor_svc.model.config import ModelConfig
from executor_svc.model.linear import IntegerLinear, Linear
from executor_svc.model.weights import LayerWeights
from kernels.cpu import after_attention as fused
from kernels.cpu.gated_mul import gelu_mul, silu_mul
from kernels.cpu.rms_norm import add_rms_norm, rms_norm
from kernels.layout import F32


@dataclass(frozen=True, slots=True)
class Following:
    """What comes behind a layer: the next one's input norm and its q, k, v, or the model's norm and None."""

    norm: F32
    qkv: Linear | None


class AfterAttention(Protocol):
    """One layer's part, for attention output f32 [M, A], which it leaves alone, and a residual f32 [M, H], to which it adds.

    Gives the next layer's q, k, v, f32 [M, C], or behind the last one its norm [M, H]; valid until the next call of any layer.
    """

    def __call__(self, attended: F32, residual: F32) -> F32: ...


def after_attention(layer: LayerWeights, following: Following, *, config: ModelConfig, space: "Space") -> AfterAttention:
    """The one call where every matrix is in groups of integers, else the composition of its parts: the same bits."""
    linears = (layer.out, layer.gate_up, layer.down, following.qkv)
    groups = [linear for linear in linears if isinstance(linear, IntegerLinear)]
    in_groups = len(groups) == sum(linear is not None for linear in linears)
    if in_groups and layer.experts is None and all(one.bias is None for one in groups[:3]):
        return Fused(layer, following, groups=groups, config=config, space=space)
    return Composed(layer, following, config=config)


class Composed:
    """Part by part, in any arithmetic."""

    def __init__(self, layer: LayerWeights, following: Following, *, config: ModelConfig) -> None:
        self._layer = layer
        self._following = following
        self._eps = config.rms_eps
        self._activate = gelu_mul if config.activation == "gelu_tanh" else silu_mul

    def __call__(self, attended: F32, residual: F32) -> F32:
        layer, x = self._layer, np.empty_like(residual)
        self._add(layer.out(attended), residual, normed_by=layer.attention_norm, next_norm=layer.post_norm, out=x)
        gate_up = layer.gate_up(x)
        gated = np.empty((len(gate_up), gate_up.shape[1] // 2), np.float32)
        self._activate(gate_up, out_TI=gated)
        part = layer.down(gated)
        if layer.experts is not None:
            part += layer.experts(x)
        self._add(part, residual, normed_by=layer.gated_norm, next_norm=self._following.norm, out=x)
        if self._following.qkv is None:
            return x
        qkv: F32 = self._following.qkv(x)
        return qkv

    def _add(self, part: F32, residual: F32, *, normed_by: F32 | None, next_norm: F32, out: F32) -> None:
        """Adds `part`, which is given up, to the residual; `out` = the sum under the next norm."""
        if normed_by is not None:
            rms_norm(part, weight_H=normed_by, eps=self._eps, out_TH=part)
        add_rms_norm(part, residual_TH=residual, weight_H=next_norm, eps=self._eps, out_TH=out)


class Space:
    """The workspace that all layers of a model share, as large as the largest batch so far."""

    def __init__(self, config: ModelConfig) -> None:
        self._widths = {
            "attended": config.num_heads * config.head_dim,
            "hidden": config.hidden_size,
            "intermediate": config.intermediate_size,
            "qkv": (config.num_heads + 2 * config.num_kv_heads) * config.head_dim,
        }
        self._whole = self._kept = fused.Workspace.of(0, **self._widths)

    def of(self, num_rows: int) -> fused.Workspace:
        """For so many rows; what was in it is gone."""
        if len(self._whole.x) < num_rows:
            self._whole = fused.Workspace.of(num_rows, **self._widths)
        if len(self._kept.x) != num_rows:
            self._kept = self._whole.first(num_rows)
        return self._kept


class Fused:
    """Everything in one kernel call."""

    def __init__(
        self, layer: LayerWeights, following: Following, *, groups: list[IntegerLinear], config: ModelConfig, space: Space
    ) -> None:
        out, gate_up, down, *qkv = groups
        self._space = space
        self._layer = fused.AfterAttention(
            out=out.weights,
            gate_up=gate_up.weights,
            down=down.weights,
            post_norm=layer.post_norm,
            next_norm=following.norm,
            attention_norm=layer.attention_norm,
            gated_norm=layer.gated_norm,
            qkv=qkv[0].weights if qkv else None,
            qkv_bias=qkv[0].bias if qkv else None,
            eps=config.rms_eps,
            gelu=config.activation == "gelu_tanh",
        )

    def __call__(self, attended: F32, residual: F32) -> F32:
        return fused.after_attention(attended, residual_TH=residual, layer=self._layer, workspace=self._space.of(len(attended)))
