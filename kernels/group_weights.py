"""Weights as small integers in groups along K, and their order for the kernel.

Legend: N outputs, K inputs, G = K / 32 groups. A weight is
`scale * code + offset`, with one scale and one offset for 32 neighbouring inputs of one output: the arithmetic of GGUF's Q4_0, Q4_1
and Q8_0 (github.com/ggml-org/ggml).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kernels.layout import F32
from kernels.packed_weights import I8, U8, PackedWeights, at_a_line, whole_panels

GROUP: Final = 32
"""Inputs that share a scale. An int16 lane holds the products of a whole group of 4-bit codes: 16 * 15 * 127 < 2 ** 15."""
LARGEST: Final = 127
"""Largest magnitude of an 8-bit code: -128 has no counterpart, and a pair of its products would leave int16."""

F16 = NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class GroupWeights:
    """One matrix as its file holds it.

    Attributes:
        codes: u8 [N, K] of 0..15 (4 bits) or i8 [N, K] of -127..127 (8 bits).
        scale: f16 [N, G].
        offset: f16 [N, G] with 4-bit codes, None with 8-bit ones.
    """

    codes: U8 | I8
    scale: F16
    offset: F16 | None

    def __post_init__(self) -> None:
        """Raises ValueError for shapes or codes that the kernels cannot take."""
        num_out, num_in = self.codes.shape
        if num_in % GROUP or self.scale.shape != (num_out, num_in // GROUP):
            raise ValueError(f"codes {self.codes.shape} and scales {self.scale.shape} are not groups of {GROUP}")
        if (self.offset is None) != (self.bits == 8) or (self.offset is not None and self.offset.shape != self.scale.shape):
            raise ValueError("4-bit codes have an offset for each scale, 8-bit codes have none")
        if self.bits == 8 and int(self.codes.min(initial=0)) < -LARGEST:
            raise ValueError(f"8-bit codes reach {int(self.codes.min())}, the least is {-LARGEST}")

    @property
    def bits(self) -> int:
        """4 or 8."""
        return 8 if self.codes.dtype == np.int8 else 4

    def picked(self, rows: slice | NDArray[np.intp]) -> "GroupWeights":
        """Some outputs, in the given order."""
        return GroupWeights(self.codes[rows], self.scale[rows], None if self.offset is None else self.offset[rows])

    def dequantised(self) -> F32:
        """f32 [N, K]."""
        weights = self.codes.astype(np.float32).reshape(*self.scale.shape, GROUP) * self.scale[..., None].astype(np.float32)
        if self.offset is not None:
            weights += self.offset[..., None].astype(np.float32)
        return weights.reshape(self.codes.shape)


def side_by_side(parts: Sequence[GroupWeights]) -> GroupWeights | None:
    """One matrix with the outputs of all, which read the same inputs; None when they differ in bits."""
    if len({part.bits for part in parts}) != 1:
        return None
    offsets = [part.offset for part in parts if part.offset is not None]
    return GroupWeights(
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scale for part in parts]),
        np.concatenate(offsets) if offsets else None,
    )


def rounded(weight_NK: F32) -> GroupWeights:
    """The nearest 8-bit codes of a float32 matrix, K a multiple of 32. Raises ValueError where a scale would not be finite."""
    grouped = weight_NK.reshape(len(weight_NK), -1, GROUP)
    with np.errstate(over="ignore"):
        scale = (np.abs(grouped).max(-1) / LARGEST).astype(np.float16)
    if not np.isfinite(scale).all():
        output, group = np.argwhere(~np.isfinite(scale))[0]
        raise ValueError(
            f"output {output}, inputs {GROUP * group} to {GROUP * group + GROUP - 1}: weights not finite, or too large"
        )
    safe = np.where(scale > 0, scale, np.float16(1)).astype(np.float32)
    codes = np.clip(np.rint(grouped / safe[..., None]), -LARGEST, LARGEST).astype(np.int8)
    return GroupWeights(codes.reshape(weight_NK.shape), scale, None)


def pack(weights: GroupWeights, *, panel: int) -> PackedWeights:
    """Reorders a matrix once, at load. `panel`: outputs that the kernel computes side by side."""
    num_out, num_in = weights.codes.shape
    groups = num_in // GROUP
    whole = whole_panels(weights.codes, panel)
    # the four inputs of a quad stay together: NumPy moves them as one number, several times faster than as four
    quads = whole.view(np.uint32).reshape(-1, panel, groups, 8).transpose(0, 2, 3, 1)  # panel, group, quad, output
    if weights.bits == 4:
        quads = quads[:, :, 0::2] | (quads[:, :, 1::2] << np.uint32(4))
    parts = [weights.scale] if weights.offset is None else [weights.scale, weights.offset]
    scales = [whole_panels(part, panel).reshape(-1, panel, groups).transpose(0, 2, 1) for part in parts]
    return PackedWeights(
        codes=at_a_line(quads).reshape(-1).view(np.uint8),
        scales=np.ascontiguousarray(np.stack(scales, axis=2)).reshape(-1).view(np.uint16),
        num_out=num_out,
        num_in=num_in,
        kind=weights.bits,
        panel=panel,
    )
