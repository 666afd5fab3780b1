"""Cases of `copy_blocks`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kernels.cuda.copy_blocks import copy_blocks
from kernels.cuda.device import Device
from kernels.layout import BLOCK_SIZE
from kernels.proof.case import Arrays, Case, elements
from kernels.proof.traffic import Bounds
from kernels.reference.copy_blocks import copy_blocks as reference

BOUNDS = Bounds(("bfloat16",))


def cases() -> Iterator[Case]:
    """One source for two destinations, blocks of odd sizes, copies that leave the cache."""
    yield _case("float32", kv_heads=1, dim=8)
    yield _case("bfloat16", kv_heads=3, dim=72)


def _case(dtype: str, *, kv_heads: int, dim: int) -> Case:
    draw = np.random.default_rng(dim)
    start: Arrays = {
        "k": elements(draw.standard_normal((6, kv_heads, BLOCK_SIZE, dim)), dtype),
        "v": elements(draw.standard_normal((6, kv_heads, BLOCK_SIZE, dim)), dtype),
        "source": np.array([1, 1, 4, 6, 3, 3], np.int32),
        "destination": np.array([0, 5, 2, 3, 6, -1], np.int32),
    }

    def launch(device: Device, on: Mapping[str, Any]) -> None:
        copy_blocks(device, on["k"], on["v"], source=on["source"], destination=on["destination"])

    def copied(arrays: Arrays) -> Arrays:
        inside = slice(3)  # the reference refuses the others
        reference(arrays["k"], v_BKPD=arrays["v"], src_M=arrays["source"][inside], dst_M=arrays["destination"][inside])
        return {"k": arrays["k"], "v": arrays["v"]}

    def arrays() -> Arrays:
        return {name: array.copy() for name, array in start.items()}

    want = {name: array.view(np.uint32) if dtype == "float32" else array for name, array in copied(arrays()).items()}
    return Case(name=dtype, arrays=arrays, launch=launch, expected=want)
