"""All stems and their cases. A kernel that is not here is not proven: `tests/unit/kernels/cuda` compares this with the sources."""

from collections.abc import Callable, Iterator
from typing import Final

from kernels.proof import copy_blocks, gated_mul, rms_norm, rope_kv_write
from kernels.proof.case import Case

STEMS: Final[dict[str, Callable[[], Iterator[Case]]]] = {
    "copy_blocks": copy_blocks.cases,
    "gated_mul": gated_mul.cases,
    "rms_norm": rms_norm.cases,
    "rope_kv_write": rope_kv_write.cases,
}
"""Stem of a `.cu` file -> its cases."""
