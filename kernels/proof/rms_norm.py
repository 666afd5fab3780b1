"""Cases of `rms_norm`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kernels.cpu import rms_norm as twin
from kernels.cuda.device import Device
from kernels.cuda.rms_norm import rms_norm
from kernels.proof.case import Arrays, Case, elements, floats, poison
from kernels.proof.traffic import Bounds, Exempt
from kernels.reference.rms_norm import rms_norm as reference

EPS = 1e-5


BOUNDS = Bounds(
    ("bfloat16 2x4104", "bfloat16 2x4104 residual"),
    (
        Exempt(
            "rms_norm", "weight", "read", 2.0, "eight float32 are two vectors: each load finds the other's half of a sector in L1"
        ),
    ),
)


def cases() -> Iterator[Case]:
    """One vector, an odd number of warps, more than one vector a thread; with and without a residual."""
    for dtype in ("float32", "bfloat16"):
        for rows, hidden in ((1, 64), (3, 576), (2, 4104)):
            for with_residual in (False, True):
                yield _case(dtype, rows, hidden, with_residual=with_residual)


def _case(dtype: str, rows: int, hidden: int, *, with_residual: bool) -> Case:
    draw = np.random.default_rng(hidden + rows)
    x, residual = (elements(draw.standard_normal((rows, hidden)), dtype) for _ in range(2))
    weight = draw.standard_normal(hidden).astype(np.float32)

    def arrays() -> Arrays:
        made = {"x": x, "weight": weight, "out": poison(x.shape, dtype)}
        return made | ({"residual": residual.copy()} if with_residual else {})

    def launch(device: Device, on: Mapping[str, Any]) -> None:
        rms_norm(device, on["x"], weight=on["weight"], eps=EPS, out=on["out"], residual=on.get("residual"))

    total = floats(elements(floats(x) + floats(residual), dtype)) if with_residual else floats(x)
    expected: Arrays = {"out": reference(total.astype(np.float32), weight_H=weight, eps=EPS)}
    if with_residual:
        expected["residual"] = total
    return Case(
        name=f"{dtype} {rows}x{hidden}{' residual' if with_residual else ''}",
        arrays=arrays,
        launch=launch,
        expected=expected,
        tolerance=1e-6 if dtype == "float32" else 4e-3,
        twin=_twin if dtype == "float32" else None,
    )


def _twin(arrays: Arrays) -> Arrays:
    out = np.empty_like(arrays["x"])
    if "residual" not in arrays:
        twin.rms_norm(arrays["x"], weight_H=arrays["weight"], eps=EPS, out_TH=out)
        return {"out": out}
    residual = arrays["residual"]
    twin.add_rms_norm(arrays["x"], residual_TH=residual, weight_H=arrays["weight"], eps=EPS, out_TH=out)
    return {"out": out, "residual": residual}
