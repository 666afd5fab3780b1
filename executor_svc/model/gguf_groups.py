"""GGUF's quantisations that are small integers in groups of 32 with float scales: read as they are, nothing is rounded."""

from typing import Final

import gguf
import numpy as np

from kernels.group_weights import F16, GROUP, LARGEST, GroupWeights
from kernels.packed_weights import U8

_Kind = gguf.GGMLQuantizationType
GROUP_KINDS: Final = frozenset({_Kind.Q4_0, _Kind.Q4_1, _Kind.Q8_0})
_CODE_BYTES: Final = GROUP // 2


def group_weights(raw: U8, kind: gguf.GGMLQuantizationType) -> GroupWeights | None:
    """The weights in a tensor's bytes, u8 [N, bytes of a row]; None for a kind that is held in another way (it is dequantised)."""
    if kind == _Kind.Q4_0:
        blocks = _blocks(raw, num_bytes=2 + _CODE_BYTES)
        scale = _halves(blocks[..., :2])
        return GroupWeights(_four_bits(blocks[..., 2:]), scale, scale * np.float16(-8))
    if kind == _Kind.Q4_1:
        blocks = _blocks(raw, num_bytes=4 + _CODE_BYTES)
        return GroupWeights(_four_bits(blocks[..., 4:]), _halves(blocks[..., :2]), _halves(blocks[..., 2:4]))
    if kind == _Kind.Q8_0:
        blocks = _blocks(raw, num_bytes=2 + GROUP)
        codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(len(raw), -1)
        return GroupWeights(codes, _halves(blocks[..., :2]), None) if int(codes.min(initial=0)) >= -LARGEST else None
    return None


def _blocks(raw: U8, *, num_bytes: int) -> U8:
    return raw.reshape(len(raw), -1, num_bytes)


def _halves(two_bytes: U8) -> F16:
    """[N, G, 2 bytes] -> f16 [N, G]."""
    halves: F16 = np.ascontiguousarray(two_bytes).view("<f2")[..., 0]
    return halves


def _four_bits(packed: U8) -> U8:
    """[N, G, 16 bytes] -> u8 [N, K]: the low halves are a group's first sixteen codes."""
    codes = np.empty((*packed.shape[:2], GROUP), np.uint8)
    np.bitwise_and(packed, 15, out=codes[..., :_CODE_BYTES])
    np.right_shift(packed, 4, out=codes[..., _CODE_BYTES:])
    return codes.reshape(len(packed), -1)
