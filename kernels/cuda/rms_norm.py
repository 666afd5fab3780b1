"""RMSNorm of rows, alone or after adding to the residual. Source: Zhang and Sennrich, https://arxiv.org/abs/1910.07467."""

from functools import cache
from typing import Any

from kernels.cuda.device import Device
from kernels.cuda.spec import Array, Kernel, Scalar, dtype_of


@cache
def rms_norm_kernel(hidden: int, dtype: str) -> Kernel:
    """For rows of `hidden` elements of float32 or bfloat16. Raises ValueError unless they are whole vectors of 8."""
    if hidden % 8:
        raise ValueError(f"rms_norm: rows of {hidden} elements are not whole vectors of 8")
    threads = min(512, -(-hidden // 8 // 32) * 32 or 32)
    return Kernel(
        source="rms_norm",
        name="rms_norm",
        args=(
            Array("x", dtype),
            Array("residual", dtype, "inout", optional=True),
            Array("weight", "float32"),
            Array("out", dtype, "out"),
            Scalar("eps", "float32"),
        ),
        defines=(("ELEMENT_F32", int(dtype == "float32")), ("HIDDEN", hidden), ("THREADS", threads)),
        block=threads,
    )


def rms_norm(device: Device, x: Any, *, weight: Any, eps: float, out: Any, residual: Any = None) -> None:
    """Writes the normed rows to `out`; with a residual, adds `x` to it first and norms the sum as it is stored.

    Args:
        x, residual, out: [T, H] of one type, three arrays.
        weight: f32 [H].
    """
    device.launch(rms_norm_kernel(x.shape[1], dtype_of(x)), (x.shape[0],), (x, residual, weight, out, eps))
