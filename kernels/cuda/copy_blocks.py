"""Copy-on-write of whole blocks in one layer's cache."""

from functools import cache
from typing import Any

from kernels.cuda.device import Device
from kernels.cuda.spec import Array, Kernel, Scalar, dtype_of, memory_of

_THREADS = 128


@cache
def copy_blocks_kernel(dtype: str) -> Kernel:
    """For blocks of any type."""
    return Kernel(
        source="copy_blocks",
        name="copy_blocks",
        args=(
            Array("k", dtype, "inout"),
            Array("v", dtype, "inout"),
            Array("source", "int32", align=4),
            Array("destination", "int32", align=4),
            Scalar("block_bytes", "int32"),
            Scalar("num_blocks", "int32"),
        ),
        defines=(("THREADS", _THREADS),),
        block=_THREADS,
    )


def copy_blocks(device: Device, k: Any, v: Any, *, source: Any, destination: Any) -> None:
    """Block destination[i] = block source[i] of keys and values [B, K, 16, D].

    Args:
        source, destination: i32 [M] on the device. A copy from or to a block that the cache does not have is not made. No
            destination may also be a source, nor stand twice: copies run at the same time. The caller, who has them on the host,
            sees to that.
    """
    block_bytes = memory_of(k).num_bytes // k.shape[0]
    device.launch(copy_blocks_kernel(dtype_of(k)), (source.shape[0], 2), (k, v, source, destination, block_bytes, k.shape[0]))
