"""All stems and their cases. A kernel that is not here is not proven: `tests/unit/kernels/cuda` compares this with the sources."""

from collections.abc import Callable, Iterator
from typing import Final

from kernels.proof import rms_norm
from kernels.proof.case import Case

STEMS: Final[dict[str, Callable[[], Iterator[Case]]]] = {
    "rms_norm": rms_norm.cases,
}
"""Stem of a `.cu` file -> its cases."""
