"""Freed memory stays with the process: a training step takes and gives back hundreds of megabytes, and pages that the kernel has
to hand out and clear anew cost more than the arithmetic on them."""

import ctypes
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST: Final = 1 << 30


def keep_freed_memory() -> None:
    """Does nothing where the C library has no `mallopt` (mallopt(3))."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        mallopt(_M_TRIM_THRESHOLD, _LARGEST)
