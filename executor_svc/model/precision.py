"""Which arithmetic the linear layers use: asked for, or the fastest that this processor has."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from executor_svc.model.config import ModelConfig, expected_tensors
from executor_svc.model.errors import UnsupportedModel
from executor_svc.model.linear import GroupLinear, Linear, MakeGroupLinear, MakeLinear, round_up_rows
from executor_svc.model.source import TensorSource
from kernels.cpu.group_tile import FORM
from kernels.group_weights import GROUP, rounded
from kernels.layout import F32

log = logging.getLogger(__name__)


class Probe(Protocol):
    """What was found out about the layers made so far."""

    batch_invariant: bool


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
    probes: tuple[Probe, ...] = ()

    @property
    def batch_invariant(self) -> bool:
        """Whether every layer made so far gives a row the same bits in any batch; bf16 claims nothing."""
        return self.name == "int8" or (bool(self.probes) and all(probe.batch_invariant for probe in self.probes))


def choose_precision(
    asked: str, *, config: ModelConfig, source: TensorSource, batch_invariant: bool = False, num_threads: int = 0
) -> Precision:
    """int8, f32, bf16, or auto; logs what and why. int8 needs no torch; the others multiply in it, on `num_threads` (0 = its own).

    auto is int8 where the file holds every matrix in groups of integers, so that no weight is rounded; else bf16 where the
    processor multiplies it and is measured to be faster; else f32. With `batch_invariant` it is never bf16, which is then refused.
    """
    if asked not in ("auto", "int8", "f32", "bf16"):
        raise UnsupportedModel(f"precision {asked!r} is not supported; known: auto, int8, f32, bf16")
    if asked == "bf16" and batch_invariant:
        raise UnsupportedModel("precision bf16 and batch_invariant exclude each other: int8 and f32 are batch-invariant")
    matrices = [name for name, shape in expected_tensors(config).items() if len(shape) == 2]
    if asked == "int8" or (asked == "auto" and all(source.has_groups(matrix) for matrix in matrices)):
        reason = "asked for" if asked == "int8" else "the file holds every matrix in groups of small integers"
        return _said(_int8(config), reason)
    from executor_svc.model import floats

    floats.set_num_threads(num_threads)
    if asked != "auto":
        name, reason = asked, "asked for"
    elif batch_invariant:
        name, reason = "f32", "batch_invariant is set, and the file does not hold every matrix in groups of small integers"
    else:
        name, reason = floats.fastest(config)
    make, make_head, probes = floats.makers(name)
    return _said(Precision(name, make, make_head, probes=probes), reason)


def _said(precision: Precision, reason: str) -> Precision:
    log.info("linear layers in %s: %s", precision.name, reason)
    return precision


def _int8(config: ModelConfig) -> Precision:
    log.info("products of bytes: %s", FORM.name)
    for name, shape in expected_tensors(config).items():
        if len(shape) == 2 and shape[1] % GROUP:
            raise UnsupportedModel(f"precision int8 needs rows that are groups of {GROUP}; tensor {name!r} has shape {shape}")
    return Precision("int8", _make_rounded, _make_rounded, GroupLinear, pad_rows=lambda count: count)


def _make_rounded(weight: F32, bias: F32 | None) -> Linear:
    """An int8 layer of float32 weights: rounded once, here."""
    return GroupLinear(rounded(weight), bias)
