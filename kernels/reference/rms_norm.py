"""Root-mean-square norm of rows, alone or after adding to the residual stream."""

import numpy as np
from numpy.typing import NDArray

from kernels.layout import F32

F64 = NDArray[np.float64]


def rms_norm(x_TH: F32, *, weight_H: F32, eps: float) -> F64:
    """x / rms(x) * weight."""
    x = x_TH.astype(np.float64)
    normed: F64 = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight_H
    return normed


def add_rms_norm(x_TH: F32, *, residual_TH: F32, weight_H: F32, eps: float) -> tuple[F32, F64]:
    """(new residual, its norm); the sum is rounded to float32, as every twin stores it."""
    residual = residual_TH + x_TH
    return residual, rms_norm(residual, weight_H=weight_H, eps=eps)
