"""Linear layers on the device: torch's products, in the type of the weights."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from executor_svc.model.errors import ModelError
from executor_svc.model.precision import Precision
from kernels.layout import F32

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


class DeviceLinear:
    """y = x W^T + b, everything in one type. See `executor_svc.model.linear.Linear`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


def device_precision(asked: str, *, device: torch.device) -> Precision:
    """bf16 or f32; auto is bf16. Raises ModelError for what this backend does not have."""
    name = "bf16" if asked == "auto" else asked
    if name not in DTYPES:
        raise ModelError(f"precision {asked!r} is not available on backend cuda; known: auto, bf16, f32")
    make = _maker(device, DTYPES[name])
    return Precision(name, make, make, pad_rows=lambda count: count)


def _maker(device: torch.device, dtype: torch.dtype) -> Callable[[F32, F32 | None], DeviceLinear]:
    def moved(array: F32) -> torch.Tensor:
        return torch.from_numpy(array).to(device, dtype)

    def make(weight: F32, bias: F32 | None) -> DeviceLinear:
        return DeviceLinear(moved(weight), None if bias is None else moved(bias))

    return make
