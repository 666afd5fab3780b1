"""Linear layers, all behind one small class, so that a precision is a file and not a flag that runs through the model.

Legend: M rows, K in, N out. A layer that claims `batch_invariant` gives a row the same bits whatever the other rows are.
Libraries choose kernels by M; so M is rounded up to a few sizes, and each size is compared with a lone row at load (`probe.py`).
"""

from collections.abc import Callable
from typing import Final, Protocol

import torch
import torch.nn.functional as F

from kernels.cpu.group_linear import group_linear
from kernels.group_weights import GroupWeights, pack

TILE: Final = 16
"""Rows of a tile of `TiledLinear`, and the row count that packed weights are laid out for."""
MAX_ROWS: Final = 256
"""Most rows of one library call; more rows are cut, so that the sizes in use stay few enough to be probed."""
HEAD_MAX_ROWS: Final = 64
"""The same for the head, which is so wide that probing it costs seconds."""


class Linear(Protocol):
    """y = x W^T + b for x [M, K] float32, M a value of `round_up_rows`, giving y [M, N] float32, which the caller owns."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]
"""(weight [N, K] float32, bias [N] or None) -> layer. The weight may be kept or copied; the caller gives it up."""
MakeGroupLinear = Callable[[GroupWeights, torch.Tensor | None], Linear]
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


class PackedLinear:
    """float32 with weights packed once by oneDNN: on the processors measured 1.3-3 times faster than plain calls below 64 rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, max_rows: int = MAX_ROWS) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, TILE)
        self._bias = bias
        self._max_rows = max_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= self._max_rows:
            return self._call(x)
        return torch.cat([self._call(part) for part in torch.split(x, self._max_rows)])

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


class TiledLinear:
    """float32 in tiles of 16 rows, zero-padded: the library sees one shape only. Slower, and the fallback when a probe fails."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[0]
        padded = F.pad(x, (0, 0, 0, -num_rows % TILE))
        return torch.cat([F.linear(tile, self._weight, self._bias) for tile in torch.split(padded, TILE)])[:num_rows]


class GroupLinear:
    """Integer products: the file's own 4 or 8 bits times inputs rounded to 8 bits in groups of 32. Any number of rows, none probed:
    integer sums cannot depend on the batch."""

    def __init__(self, weights: GroupWeights, bias: torch.Tensor | None) -> None:
        self.weights = pack(weights)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(x.shape[0], self.weights.num_out)
        group_linear(x.numpy(), weights=self.weights, out_MN=y.numpy())
        return y if self.bias is None else y.add_(self.bias)


class Bf16Linear:
    """bfloat16 weights and inputs, float32 results: for processors that multiply it natively. Claims no invariance."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        half = weight.to(torch.bfloat16)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(half, TILE) if self._packed else half
        self._bias = None if bias is None else bias.to(torch.bfloat16)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        half = x.to(torch.bfloat16)
        if not self._packed:
            return F.linear(half, self._weight, self._bias).to(torch.float32)
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(half, self._weight, self._bias, "none", [], "")
        return y.to(torch.float32)
