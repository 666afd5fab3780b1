"""The arithmetics that torch multiplies: f32 and bf16, which is the faster one here, and what makes their layers."""

import time
from collections.abc import Mapping

import torch

from executor_svc.model.config import ModelConfig
from executor_svc.model.float_linear import Bf16Linear, PackedLinear, TensorLinear, on_host
from executor_svc.model.linear import HEAD_MAX_ROWS, MAX_ROWS, MakeLinear
from executor_svc.model.probe import InvariantLinears


def set_num_threads(count: int) -> None:
    """For products of this process; 0 = as torch has it."""
    if count:
        torch.set_num_threads(count)


def makers(name: str) -> tuple[MakeLinear, MakeLinear, tuple[InvariantLinears, ...]]:
    """For f32 or bf16: what makes layers, what makes the head, and the probes that tell whether those are batch-invariant."""
    if name == "bf16":
        return on_host(Bf16Linear), on_host(Bf16Linear), ()
    layers, head = InvariantLinears(max_rows=MAX_ROWS), InvariantLinears(max_rows=HEAD_MAX_ROWS)
    return on_host(layers), on_host(head), (layers, head)


def fastest(config: ModelConfig, *, flags: Mapping[str, object] | None = None) -> tuple[str, str]:
    """f32 or bf16, and why. `flags` are the processor's capabilities, None = those of this one."""
    has = torch.cpu.get_capabilities() if flags is None else flags
    if not (has.get("avx512_bf16") or has.get("amx_bf16")):
        return "f32", "this processor has no bfloat16 products"
    weight = torch.ones(2 * config.intermediate_size, config.hidden_size)
    x = torch.ones(8, config.hidden_size)
    with torch.inference_mode():
        f32_s, bf16_s = (_time_s(kind(weight, None), x) for kind in (PackedLinear, Bf16Linear))
    name = "bf16" if bf16_s < f32_s else "f32"
    return name, f"8 rows through one layer take {bf16_s * 1e6:.0f} us in bf16 and {f32_s * 1e6:.0f} us in f32"


def _time_s(layer: TensorLinear, x: torch.Tensor) -> float:
    """The best of several calls."""
    times = []
    for _ in range(8):
        start = time.perf_counter()
        layer(x)
        times.append(time.perf_counter() - start)
    return min(times)
