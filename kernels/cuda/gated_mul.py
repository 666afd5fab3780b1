"""The gated activation of a feed-forward block. Source: Shazeer, https://arxiv.org/abs/2002.05202."""

from functools import cache
from typing import Any

from kernels.cuda.device import Device
from kernels.cuda.spec import Array, Kernel, Scalar, dtype_of

_THREADS = 128
_MOST_ROWS = 65535
"""Blocks that a grid has in y."""


@cache
def gated_mul_kernel(inner: int, activation: str, dtype: str) -> Kernel:
    """For "silu" or "gelu_tanh" and float32 or bfloat16. Raises ValueError for anything else or rows that are not vectors of 8."""
    if inner % 8 or activation not in ("silu", "gelu_tanh"):
        raise ValueError(f"gated_mul: {activation} over rows of {inner}; want silu or gelu_tanh and a multiple of 8")
    return Kernel(
        source="gated_mul",
        name="gated_mul",
        args=(Array("gate_up", dtype), Array("out", dtype, "out"), Scalar("num_rows", "int32")),
        defines=(
            ("ELEMENT_F32", int(dtype == "float32")),
            ("INNER", inner),
            ("GELU", int(activation == "gelu_tanh")),
            ("THREADS", _THREADS),
        ),
        block=_THREADS,
    )


def gated_mul(device: Device, gate_up: Any, *, activation: str, out: Any) -> None:
    """out [T, I] = activation(gate) * up for gate_up [T, 2 I], T at most 65535."""
    rows, inner = out.shape
    if rows > _MOST_ROWS:
        raise ValueError(f"gated_mul: {rows} rows, at most {_MOST_ROWS} in one launch")
    kernel = gated_mul_kernel(inner, activation, dtype_of(gate_up))
    device.launch(kernel, (-(-inner // (_THREADS * 8)), rows), (gate_up, out, rows))
