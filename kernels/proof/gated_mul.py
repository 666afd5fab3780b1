"""Cases of `gated_mul`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kernels.cpu import gated_mul as twin
from kernels.cuda.device import Device
from kernels.cuda.gated_mul import gated_mul
from kernels.proof.case import Arrays, Case, elements, floats, poison
from kernels.reference.gated_mul import gelu_mul, silu_mul


def cases() -> Iterator[Case]:
    """Both activations, one block of a row and several, numbers that leave exp's range."""
    for dtype in ("float32", "bfloat16"):
        for activation in ("silu", "gelu_tanh"):
            yield _case(dtype, activation, inner=1544)


def _case(dtype: str, activation: str, *, inner: int) -> Case:
    draw = np.random.default_rng(inner)
    gate_up = elements(draw.standard_normal((3, 2 * inner)) * 3, dtype)
    gate_up[0, :4] = elements(np.array([200.0, -200.0, 0.0, -0.0]), dtype)
    meaning = (gelu_mul if activation == "gelu_tanh" else silu_mul)(floats(gate_up).astype(np.float32))

    def launch(device: Device, on: Mapping[str, Any]) -> None:
        gated_mul(device, on["gate_up"], activation=activation, out=on["out"])

    def cpu(arrays: Arrays) -> Arrays:
        (twin.gelu_mul if activation == "gelu_tanh" else twin.silu_mul)(arrays["gate_up"], out_TI=arrays["out"])
        return {"out": arrays["out"]}

    return Case(
        name=f"{dtype} {activation}",
        arrays=lambda: {"gate_up": gate_up.copy(), "out": poison((3, inner), dtype)},
        launch=launch,
        expected={"out": meaning},
        tolerance=1e-6 if dtype == "float32" else 4e-3,
        twin=cpu if dtype == "float32" else None,
    )
