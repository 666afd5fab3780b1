"""From one layer's attention to the next layer's input, part by part in float64; inputs of products rounded as in the twin."""

import numpy as np
from numpy.typing import NDArray

from kernels.group_weights import GroupWeights
from kernels.layout import F32
from kernels.reference.gated_mul import gelu_mul, silu_mul
from kernels.reference.group_linear import group_linear
from kernels.reference.rms_norm import rms_norm
from kernels.reference.rotated_linear import rotated_linear
from kernels.rotated_weights import RotatedWeights

F64 = NDArray[np.float64]
Weights = GroupWeights | RotatedWeights


def _linear(x: F64, weights: Weights) -> F64:
    if isinstance(weights, RotatedWeights):
        return rotated_linear(x.astype(np.float32), weights=weights)
    return group_linear(x.astype(np.float32), weights=weights)


def after_attention(
    attended_TA: F32,
    *,
    residual_TH: F32,
    out: Weights,
    gate_up: Weights,
    down: Weights,
    post_norm: F32,
    next_norm: F32,
    eps: float,
    attention_norm: F32 | None = None,
    gated_norm: F32 | None = None,
    qkv: Weights | None = None,
    qkv_bias: F32 | None = None,
    gelu: bool = False,
) -> tuple[F64, F64]:
    """(the new residual [T, H], the next layer's q, k, v [T, C] or the last norm [T, H]); meanings as in the CPU twin."""
    part = _linear(attended_TA.astype(np.float64), out)
    if attention_norm is not None:
        part = rms_norm(part.astype(np.float32), weight_H=attention_norm, eps=eps)
    residual = residual_TH + part
    x = rms_norm(residual.astype(np.float32), weight_H=post_norm, eps=eps)
    part = _linear((gelu_mul if gelu else silu_mul)(_linear(x, gate_up).astype(np.float32)), down)
    if gated_norm is not None:
        part = rms_norm(part.astype(np.float32), weight_H=gated_norm, eps=eps)
    residual = residual + part
    x = rms_norm(residual.astype(np.float32), weight_H=next_norm, eps=eps)
    if qkv is None:
        return residual, x
    following = _linear(x, qkv)
    return residual, following if qkv_bias is None else following + qkv_bias
