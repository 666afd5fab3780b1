"""Cases of `gated_mul`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cpu import gated_mul as twin
from kernels.cuda.device import Device
from kernels.cuda.gated_mul import gated_mul
from kernels.proof.case import Arrays, Case, elements, floats, poison
from kernels.proof.traffic import Bounds
from kernels.reference.gated_mul import gelu_mul, silu_mul

BOUNDS = Bounds(("bfloat16 silu", "bfloat16 gelu_tanh"))


def cases() -> Iterator[Case]:
    """Both activations, one block of a row and several, numbers that leave exp's range; tails, small throughout."""
    for activation in ("silu", "gelu_tanh"):
        for dtype in ("float32", "bfloat16"):
            gate_up = elements(np.random.default_rng(0).standard_normal((3, 2 * 1544)) * 3, dtype)
            gate_up[0, :4] = elements(np.array([200.0, -200.0, 0.0, -0.0]), dtype)
            yield _case(f"{dtype} {activation}", dtype, activation, gate_up)
        tail = np.concatenate([np.linspace(-4, -3.9, 8), np.ones(8)])[None]
        yield _case(f"tail of {activation}", "float32", activation, elements(tail, "float32"))


def _case(name: str, dtype: str, activation: str, gate_up: NDArray[Any]) -> Case:
    meaning = (gelu_mul if activation == "gelu_tanh" else silu_mul)(floats(gate_up).astype(np.float32))

    def launch(device: Device, on: Mapping[str, Any]) -> None:
        gated_mul(device, on["gate_up"], activation=activation, out=on["out"])

    def cpu(arrays: Arrays) -> Arrays:
        (twin.gelu_mul if activation == "gelu_tanh" else twin.silu_mul)(arrays["gate_up"], out_TI=arrays["out"])
        return {"out": arrays["out"]}

    return Case(
        name=name,
        arrays=lambda: {"gate_up": gate_up.copy(), "out": poison(meaning.shape, dtype)},
        launch=launch,
        expected={"out": meaning},
        tolerance=1e-6 if dtype == "float32" else 4e-3,
        twin=cpu if dtype == "float32" else None,
    )
