"""Weights as 8-bit integers with one scale an output, of inputs that were rotated first.

Legend: N outputs, K inputs, B = 64 inputs of a block (32 where K is no multiple of 64), W outputs of a panel, P panels.

A row x of inputs and a row w of weights are turned alike before each is rounded with one scale for all of it: block by block
R = H S, where S flips the signs by `SIGNS` and H is the Hadamard matrix of Sylvester's order, so that (R x) . (R w) = B (x . w).
Turning spreads a value that stands out over its block, and then one scale costs little: QuaRot (arXiv 2404.00456) does the
same to a whole model. A row of products is a sum of integers from end to end, with nothing to scale in between.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from kernels.group_weights import GROUP, LARGEST
from kernels.layout import F32
from kernels.packed_weights import I8, ROTATED, PackedWeights, at_a_line, whole_panels

BLOCK: Final = 64
MOST_INPUTS: Final = 1 << 16
"""Inputs of a row at most: an int32 holds that many products of 255 x 127."""


def block_of(num_in: int) -> int:
    """Inputs that are turned together: 64, or 32."""
    return BLOCK if num_in % BLOCK == 0 else GROUP


def _bent() -> F32:
    bits = np.arange(BLOCK)[:, None] >> np.arange(6) & 1
    signs: F32 = (1 - 2 * ((bits[:, 0::2] & bits[:, 1::2]).sum(1) % 2)).astype(np.float32)
    return signs


SIGNS: Final = _bent()
"""f32 [64] of +-1, x0 x1 + x2 x3 + x4 x5 by the bits of the place: a bent function (Rothaus, 1976). No Walsh function is near it,
so what most inputs have in common (a block of equal values, say) is spread evenly instead of being gathered in one place."""


@dataclass(frozen=True, slots=True)
class RotatedWeights:
    """One matrix, turned and rounded.

    Attributes:
        codes: i8 [N, K] of -127..127.
        scale: f32 [N]; a weight under R is `scale * code`, with the 1 / B of the product in it.
    """

    codes: I8
    scale: F32

    def __post_init__(self) -> None:
        """Raises ValueError for shapes or codes that the kernels cannot take."""
        num_out, num_in = self.codes.shape
        if num_in % GROUP or num_in > MOST_INPUTS or self.scale.shape != (num_out,):
            limits = f"inputs are a multiple of {GROUP}, at most {MOST_INPUTS}"
            raise ValueError(f"codes {self.codes.shape} with scales {self.scale.shape} do not fit: {limits}")
        if int(self.codes.min(initial=0)) < -LARGEST:
            raise ValueError(f"codes reach {int(self.codes.min())}, the least is {-LARGEST}")


def pack_rotated(weights: RotatedWeights, *, panel: int, raised: int) -> PackedWeights:
    """Reorders a matrix once, at load. `panel`: outputs that the kernel computes side by side; `raised`: what it adds to codes."""
    num_out, num_in = weights.codes.shape
    whole = whole_panels(weights.codes, panel)
    codes = (whole.view(np.uint8) + np.uint8(raised)).view(np.uint32)  # modulo 256, as bytes are
    quads = codes.reshape(-1, panel, num_in // 4).transpose(0, 2, 1)
    return PackedWeights(
        codes=at_a_line(quads).reshape(-1).view(np.uint8),
        scales=whole_panels(weights.scale[:, None], panel).reshape(-1).view(np.uint16),
        num_out=num_out,
        num_in=num_in,
        kind=ROTATED,
        panel=panel,
    )
