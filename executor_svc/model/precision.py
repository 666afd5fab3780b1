"""Which arithmetic the linear layers use: asked for, or the fastest that this processor has."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from executor_svc.model.config import ModelConfig
from executor_svc.model.errors import UnsupportedModel
from executor_svc.model.linear import HEAD_MAX_ROWS, MAX_ROWS, Bf16Linear, Linear, MakeLinear, PackedLinear
from executor_svc.model.probe import InvariantLinears

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Precision:
    """A chosen arithmetic: its name, and what makes layers of it (`MakeLinear`)."""

    name: str
    make: MakeLinear
    make_head: MakeLinear
    probes: tuple[InvariantLinears, ...] = ()

    @property
    def batch_invariant(self) -> bool:
        """Whether every layer made so far gives a row the same bits in any batch; bf16 claims nothing."""
        return bool(self.probes) and all(probe.batch_invariant for probe in self.probes)


def choose_precision(asked: str, *, config: ModelConfig) -> Precision:
    """f32, bf16 or auto, which takes bf16 where the processor multiplies it and is measured to be faster; logs what and why."""
    if asked not in ("auto", "f32", "bf16"):
        raise UnsupportedModel(f"precision {asked!r} is not supported; known: auto, f32, bf16")
    name, reason = (asked, "asked for") if asked != "auto" else _fastest(config, flags=torch.cpu.get_capabilities())
    log.info("linear layers in %s: %s", name, reason)
    if name == "bf16":
        return Precision("bf16", Bf16Linear, Bf16Linear)
    layers, head = InvariantLinears(max_rows=MAX_ROWS), InvariantLinears(max_rows=HEAD_MAX_ROWS)
    return Precision("f32", layers, head, (layers, head))


def _fastest(config: ModelConfig, *, flags: Mapping[str, object]) -> tuple[str, str]:
    if not (flags.get("avx512_bf16") or flags.get("amx_bf16")):
        return "f32", "this processor has no bfloat16 products"
    weight = torch.ones(2 * config.intermediate_size, config.hidden_size)
    x = torch.ones(8, config.hidden_size)
    f32_s, bf16_s = (_time_s(kind(weight, None), x) for kind in (PackedLinear, Bf16Linear))
    name = "bf16" if bf16_s < f32_s else "f32"
    return name, f"8 rows through one layer take {bf16_s * 1e6:.0f} us in bf16 and {f32_s * 1e6:.0f} us in f32"


def _time_s(layer: Linear, x: torch.Tensor) -> float:
    """The best of several calls."""
    times = []
    for _ in range(8):
        start = time.perf_counter()
        layer(x)
        times.append(time.perf_counter() - start)
    return min(times)
