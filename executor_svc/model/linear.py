"""Linear layers, all behind one small class, so that a precision is a file and not a flag that runs through the model.

Legend: M rows, K in, N out. A layer that claims `batch_invariant` gives a row the same bits whatever the other rows are.
Libraries choose kernels by M; so M is rounded up to a few sizes, and each size is compared with a lone row at load (`probe.py`).
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np

from kernels.cpu.integer_linear import integer_linear
from kernels.group_weights import GroupWeights
from kernels.layout import F32
from kernels.packed_weights import PackedWeights

MAX_ROWS: Final = 256
"""Most rows of one library call; more rows are cut, so that the sizes in use stay few enough to be probed."""
HEAD_MAX_ROWS: Final = 64
"""The same for the head, which is so wide that probing it costs seconds."""


class Linear(Protocol):
    """y = x W^T + b for x [M, K] float32, M a value of `round_up_rows`, giving y [M, N] float32, which the caller owns.

    NumPy arrays on the processor; a backend for another device has torch's tensors there, in its own type.
    """

    def __call__(self, x: Any) -> Any: ...


MakeLinear = Callable[[F32, F32 | None], Linear]
"""(weight [N, K] float32, bias [N] or None) -> layer. The weight may be kept or copied; the caller gives it up."""
MakeGroupLinear = Callable[[GroupWeights, F32 | None], Linear]
"""The same for a weight in groups."""


def round_up_rows(count: int) -> int:
    """The number of rows, at least `count`, that a batch is padded to: fine steps while rows are dear, coarse ones later."""
    if count <= 8:
        return max(count, 1)
    step = 8 if count <= 64 else 16 if count <= 128 else 32
    return -(-count // step) * step


def row_counts(limit: int = MAX_ROWS) -> list[int]:
    """Every value of `round_up_rows` up to `limit`."""
    return sorted({round_up_rows(count) for count in range(1, limit + 1)})


class IntegerLinear:
    """Integer products of inputs rounded to 8 bits. Any number of rows, none probed: integer sums cannot depend on the batch."""

    def __init__(self, weights: PackedWeights, bias: F32 | None) -> None:
        self.weights = weights
        self.bias = bias

    def __call__(self, x: F32) -> F32:
        y = np.empty((len(x), self.weights.num_out), np.float32)
        integer_linear(x, weights=self.weights, out_MN=y)
        if self.bias is not None:
            y += self.bias
        return y
