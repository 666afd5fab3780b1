"""All stems and their cases. A kernel that is not here is not proven: `tests/unit/kernels/cuda` compares this with the sources."""

from collections.abc import Callable, Iterator
from typing import Final

from kernels.proof import mtp_accept, rms_norm, sample
from kernels.proof.case import Case

STEMS: Final[dict[str, Callable[[], Iterator[Case]]]] = {
    "mtp_accept": mtp_accept.cases,
    "rms_norm": rms_norm.cases,
    "sample": sample.cases,
}
"""Stem of a `.cu` file -> its cases."""
