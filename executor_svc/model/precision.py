"""Which arithmetic the linear layers use: asked for, or the fastest that this processor has."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from executor_svc.model.config import ModelConfig, expected_tensors
from executor_svc.model.errors import UnsupportedModel
from executor_svc.model.linear import (
    HEAD_MAX_ROWS,
    MAX_ROWS,
    Bf16Linear,
    GroupLinear,
    Linear,
    MakeGroupLinear,
    MakeLinear,
    PackedLinear,
    round_up_rows,
)
from executor_svc.model.probe import InvariantLinears
from executor_svc.model.source import TensorSource
from kernels.cpu.group_tile import FORM
from kernels.group_weights import GROUP, rounded

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Precision:
    """A chosen arithmetic: its name, and what makes layers of it.

    Attributes:
        make, make_head: from float32 weights.
        make_groups: from weights that the file holds in groups; None = they are dequantised to float32 first.
        pad_rows: the number of rows that a batch of so many is padded to.
    """

    name: str
    make: MakeLinear
    make_head: MakeLinear
    make_groups: MakeGroupLinear | None = None
    pad_rows: Callable[[int], int] = round_up_rows
    probes: tuple[InvariantLinears, ...] = ()

    @property
    def batch_invariant(self) -> bool:
        """Whether every layer made so far gives a row the same bits in any batch; bf16 claims nothing."""
        return self.name == "int8" or (bool(self.probes) and all(probe.batch_invariant for probe in self.probes))


def choose_precision(asked: str, *, config: ModelConfig, source: TensorSource, batch_invariant: bool = False) -> Precision:
    """int8, f32, bf16, or auto; logs what and why.

    auto is int8 where the file holds every matrix in groups of integers, so that no weight is rounded; else bf16 where the
    processor multiplies it and is measured to be faster; else f32. With `batch_invariant` it is never bf16, which is then refused.
    """
    if asked not in ("auto", "int8", "f32", "bf16"):
        raise UnsupportedModel(f"precision {asked!r} is not supported; known: auto, int8, f32, bf16")
    if asked == "bf16" and batch_invariant:
        raise UnsupportedModel("precision bf16 and batch_invariant exclude each other: int8 and f32 are batch-invariant")
    matrices = [name for name, shape in expected_tensors(config).items() if len(shape) == 2]
    if asked != "auto":
        name, reason = asked, "asked for"
    elif all(source.has_groups(matrix) for matrix in matrices):
        name, reason = "int8", "the file holds every matrix in groups of small integers"
    elif batch_invariant:
        name, reason = "f32", "batch_invariant is set, and the file does not hold every matrix in groups of small integers"
    else:
        name, reason = _fastest(config, flags=torch.cpu.get_capabilities())
    log.info("linear layers in %s: %s", name, reason)
    if name == "int8":
        log.info("products of bytes: %s", FORM.name)
        _check_groups(config)
        return Precision("int8", _make_rounded, _make_rounded, GroupLinear, pad_rows=lambda count: count)
    if name == "bf16":
        return Precision("bf16", Bf16Linear, Bf16Linear)
    layers, head = InvariantLinears(max_rows=MAX_ROWS), InvariantLinears(max_rows=HEAD_MAX_ROWS)
    return Precision("f32", layers, head, probes=(layers, head))


def _make_rounded(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """An int8 layer of float32 weights: rounded once, here."""
    return GroupLinear(rounded(weight.numpy()), bias)


def _check_groups(config: ModelConfig) -> None:
    for name, shape in expected_tensors(config).items():
        if len(shape) == 2 and shape[1] % GROUP:
            raise UnsupportedModel(f"precision int8 needs rows that are groups of {GROUP}; tensor {name!r} has shape {shape}")


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
