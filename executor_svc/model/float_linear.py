"""Linear layers in float32 and bfloat16: torch's products. Imported only where they are chosen: torch takes seconds to import.

Legend as in `linear.py`. `Packed`, `Tiled` and `Bf16` take tensors; `OnHost` puts one behind the interface that the rest uses.
"""

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F

from executor_svc.model.linear import MAX_ROWS
from kernels.layout import F32

TILE: Final = 16
"""Rows of a tile of `TiledLinear`, and the row count that packed weights are laid out for."""
TensorLinear = Callable[[torch.Tensor], torch.Tensor]
"""As `Linear`, on tensors."""


class OnHost:
    """As `Linear`, over a layer of tensors; no memory is copied."""

    def __init__(self, layer: TensorLinear) -> None:
        self.layer = layer

    def __call__(self, x: F32) -> F32:
        with torch.inference_mode():
            y: F32 = self.layer(torch.from_numpy(x)).numpy()
        return y


def on_host(make: Callable[[torch.Tensor, torch.Tensor | None], TensorLinear]) -> Callable[[F32, F32 | None], OnHost]:
    """As MakeLinear, from what makes layers of tensors."""

    def made(weight: F32, bias: F32 | None) -> OnHost:
        with torch.inference_mode():
            return OnHost(make(torch.from_numpy(weight), None if bias is None else torch.from_numpy(bias)))

    return made


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
