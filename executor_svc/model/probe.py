"""Is a linear layer batch-invariant here? Asked of every shape at load, because libraries choose kernels by shape and processor."""

import logging

import torch

from executor_svc.model.float_linear import PackedLinear, TensorLinear, TiledLinear
from executor_svc.model.linear import row_counts

log = logging.getLogger(__name__)


def is_batch_invariant(layer: TensorLinear, *, in_features: int, max_rows: int) -> bool:
    """Whether each row of every row count in use, at every place, has exactly the bits that it has alone."""
    generator = torch.Generator().manual_seed(7)
    some = torch.randn(13, in_features, generator=generator)  # 13: prime to every tile, so each row comes to stand at every place
    rows = some.repeat(-(-max_rows // 13), 1)
    alone = torch.cat([layer(row[None, :]) for row in some]).repeat(-(-max_rows // 13), 1)
    return all(torch.equal(layer(rows[:count]), alone[:count]) for count in row_counts(max_rows))


class InvariantLinears:
    """Makes float32 layers: packed where that is proven invariant for the shape, else tiled. Each shape is probed once.

    Attributes:
        batch_invariant: False once even tiles failed a probe.
    """

    def __init__(self, *, max_rows: int) -> None:
        self._max_rows = max_rows
        self._verdicts: dict[tuple[int, int, bool], bool] = {}
        self.batch_invariant = True

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> TensorLinear:
        """As MakeLinear, of tensors."""
        packed = PackedLinear(weight, bias, max_rows=self._max_rows)
        shape = (*weight.shape, bias is not None)
        if shape not in self._verdicts:
            self._verdicts[shape] = is_batch_invariant(packed, in_features=weight.shape[1], max_rows=self._max_rows)
            if not self._verdicts[shape]:
                self._check_tiles(weight, bias)
        return packed if self._verdicts[shape] else TiledLinear(weight, bias)

    def _check_tiles(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        shape = "x".join(str(size) for size in weight.shape)
        log.warning("packed float32 product %s depends on the batch on this processor; using tiles of 16 rows", shape)
        if not is_batch_invariant(TiledLinear(weight, bias), in_features=weight.shape[1], max_rows=self._max_rows):
            log.warning("tiles of 16 rows depend on the batch too: %s; results are not batch-invariant here", shape)
            self.batch_invariant = False
