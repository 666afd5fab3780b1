"""Copies whole blocks inside one layer's cache: copy-on-write when sequences that share a block part."""

from kernels.reference.copy_blocks import copy_blocks

__all__ = ["copy_blocks"]
