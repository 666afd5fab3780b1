"""A linear layer of integer weights and integer inputs, both in groups of 32 along K."""

import numpy as np
from numpy.typing import NDArray

from kernels.group_weights import GROUP, LARGEST, GroupWeights
from kernels.layout import F32
from kernels.packed_weights import I8


def quantise_rows(x_MK: F32) -> tuple[I8, F32]:
    """(codes i8 [M, K], scales f32 [M, G]): x = scale * code, the largest magnitude of a group at +-127.

    A group with a value that is not finite has scale NaN and codes 0; one below 2 ** -100 throughout has both 0.
    """
    grouped = x_MK.reshape(len(x_MK), -1, GROUP)
    finite = np.asarray(np.isfinite(grouped).all(-1))
    most = np.abs(np.where(finite[..., None], grouped, 0)).max(-1).astype(np.float32)
    most = np.where(most < np.float32(2.0**-100), np.float32(0), most)
    inverse = np.divide(np.float32(LARGEST), most, out=np.zeros_like(most), where=most > 0)
    with np.errstate(invalid="ignore"):
        codes = np.where(finite[..., None], np.rint(grouped * inverse[..., None]), 0).astype(np.int8)
    scale = np.where(finite, most / np.float32(LARGEST), np.float32(np.nan)).astype(np.float32)
    return codes.reshape(x_MK.shape), scale


def group_linear(x_MK: F32, *, weights: GroupWeights) -> NDArray[np.float64]:
    """y [M, N] = quantised x times dequantised weights."""
    codes, scale = quantise_rows(x_MK)
    x = (codes.reshape(*scale.shape, GROUP) * scale[..., None].astype(np.float64)).reshape(x_MK.shape)
    y: NDArray[np.float64] = x @ weights.dequantised().astype(np.float64).T
    return y
