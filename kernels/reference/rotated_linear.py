"""A linear layer of rotated rows: inputs and weights turned block by block, then 8-bit integers with one scale a row."""

import numpy as np
from numpy.typing import NDArray

from kernels.group_weights import LARGEST
from kernels.layout import F32
from kernels.packed_weights import I8
from kernels.rotated_weights import SIGNS, RotatedWeights, block_of


def turned(x_MK: F32) -> F32:
    """R x of each row, in float32: every addition in the order of the kernels, so that they round alike."""
    size = block_of(x_MK.shape[1])
    x = x_MK.reshape(-1, size) * SIGNS[:size]
    lane = np.arange(size)
    for stage in range(size.bit_length() - 1):
        distance = 1 << stage
        x = np.where(lane & distance, x[:, lane ^ distance] - x, x[:, lane ^ distance] + x)
    result: F32 = x.reshape(x_MK.shape)
    return result


def rotate_rows(x_MK: F32) -> tuple[I8, F32]:
    """(codes i8 [M, K], scales f32 [M]): R x = scale * code, the largest magnitude of a row at +-127.

    A row that is not finite, or not when turned, has scale NaN and codes 0; one below 2 ** -100 throughout has both 0.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        x = turned(x_MK)
        finite = np.asarray(np.isfinite(x).all(1))
        most = np.abs(np.where(finite[:, None], x, 0)).max(1).astype(np.float32)
        most = np.where(most < np.float32(2.0**-100), np.float32(0), most)
        inverse = np.divide(np.float32(LARGEST), most, out=np.zeros_like(most), where=most > 0)
        codes = np.where(inverse[:, None] > 0, np.rint(x * inverse[:, None]), 0).astype(np.int8)
    scale: F32 = np.where(finite, most / np.float32(LARGEST), np.float32(np.nan)).astype(np.float32)
    return codes, scale


def rotated_linear(x_MK: F32, *, weights: RotatedWeights) -> NDArray[np.float64]:
    """y [M, N] = what the codes of both sides stand for, multiplied."""
    codes, scale = rotate_rows(x_MK)
    products = codes.astype(np.float64) @ weights.codes.astype(np.float64).T
    y: NDArray[np.float64] = products * scale[:, None].astype(np.float64) * weights.scale.astype(np.float64)
    return y
