"""A matrix of integers as `integer_linear` reads it, whichever way its weights were rounded.

Legend: N outputs, K inputs, G = K / 32 groups, W outputs of a panel, P = N / W panels (rounded up).
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LINE: Final = 64
"""Bytes of a cache line."""
ROTATED: Final = 1
"""The kind of `RotatedWeights`; `GroupWeights` have their bits, 4 or 8."""

I8 = NDArray[np.int8]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Panel by panel, front to back, and in a panel quad by quad: 4 neighbouring inputs of W outputs, 4 W bytes.

    Attributes:
        codes: u8, flat. With 4 bits two neighbouring quads of a group share these bytes, the first in the low halves.
        scales: flat, the bits of f16 (numba has no such array) [P, G, W], or [P, G, 2, W] with offsets behind the scales; rotated:
            the bits of f32 [P, W].
        num_out, num_in, kind, panel: N, K, 4, 8 or ROTATED, W. Outputs behind N are zero.
    """

    codes: U8
    scales: U16
    num_out: int
    num_in: int
    kind: int
    panel: int


def at_a_line(quads: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A contiguous copy that begins at a cache line: a vector of 64 bytes that lies across two costs two reads."""
    memory = np.empty(quads.nbytes + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    copy = memory[start : start + quads.nbytes].view(np.uint32).reshape(quads.shape)
    copy[...] = quads
    return copy


def whole_panels(rows: NDArray[Any], panel: int) -> NDArray[Any]:
    """The rows, contiguous, with zeros behind them up to a multiple of `panel`."""
    missing = -len(rows) % panel
    return np.pad(rows, ((0, missing), (0, 0))) if missing else np.ascontiguousarray(rows)
