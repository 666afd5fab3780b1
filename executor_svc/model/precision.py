"""Which arithmetic the linear layers use: asked for, or the fastest that this processor has."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from executor_svc.model.config import ModelConfig, expected_tensors
from executor_svc.model.errors import UnsupportedModel
from executor_svc.model.linear import IntegerLinear, Linear, MakeGroupLinear, MakeLinear, round_up_rows
from executor_svc.model.source import TensorSource
from kernels.cpu.byte_products import Vnni
from kernels.cpu.group_tile import FORM
from kernels.cpu.integer_linear import packed, rotated
from kernels.group_weights import GROUP, GroupWeights, rounded
from kernels.layout import F32

log = logging.getLogger(__name__)

INTEGERS: Final = ("int8", "int8-groups")
"""Precisions whose layers multiply integers: rotated rows with one scale each, and groups of 32 as files hold them."""
KNOWN: Final = ("auto", *INTEGERS, "f32", "bf16")


class Probe(Protocol):
    """What was found out about the layers made so far."""

    batch_invariant: bool


@dataclass(frozen=True, slots=True)
class Precision:
    """A chosen arithmetic: its name, and what makes layers of it.

    Attributes:
        make, make_head: from float32 weights.
        make_groups: from weights that the file holds in groups, kept as they are; None = they are dequantised to float32 first.
        pad_rows: the number of rows that a batch of so many is padded to.
    """

    name: str
    make: MakeLinear
    make_head: MakeLinear
    make_groups: MakeGroupLinear | None = None
    pad_rows: Callable[[int], int] = round_up_rows
    probes: tuple[Probe, ...] = ()

    @property
    def integers(self) -> bool:
        """Whether layers multiply integers, of any number of rows and without torch."""
        return self.name in INTEGERS

    @property
    def batch_invariant(self) -> bool:
        """Whether every layer made so far gives a row the same bits in any batch; bf16 claims nothing."""
        return self.integers or (bool(self.probes) and all(probe.batch_invariant for probe in self.probes))


def choose_precision(
    asked: str, *, config: ModelConfig, source: TensorSource, batch_invariant: bool = False, num_threads: int = 0
) -> Precision:
    """One of `KNOWN`; logs what and why. Integers need no torch; floats multiply in it, on `num_threads` (0 = its own).

    auto is integers where the file holds every matrix in groups of them: rotated (int8) where the processor multiplies bytes by
    itself (VNNI), so that a scale for each group costs as much as its products, else in those groups (int8-groups), which rounds no
    weight. Of a file of floats it is bf16 where the processor multiplies it and is measured to be faster, else f32. With
    `batch_invariant` it is never bf16, which is then refused. A name means the same bits on every processor.
    """
    if asked not in KNOWN:
        raise UnsupportedModel(f"precision {asked!r} is not supported; known: {', '.join(KNOWN)}")
    if asked == "bf16" and batch_invariant:
        raise UnsupportedModel(
            "precision bf16 and batch_invariant exclude each other: int8, int8-groups and f32 are batch-invariant"
        )
    matrices = [name for name, shape in expected_tensors(config).items() if len(shape) == 2]
    if asked in INTEGERS:
        return _said(_in_integers(asked, config), "asked for")
    if asked == "auto" and all(source.has_groups(matrix) for matrix in matrices):
        name = "int8" if isinstance(FORM, Vnni) else "int8-groups"
        reason = f"the file holds every matrix in groups of small integers, and {FORM.name} multiplies bytes here"
        return _said(_in_integers(name, config), reason)
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


def _in_integers(name: str, config: ModelConfig) -> Precision:
    for tensor, shape in expected_tensors(config).items():
        if len(shape) == 2 and shape[1] % GROUP:
            raise UnsupportedModel(f"precision {name} needs rows that are groups of {GROUP}; tensor {tensor!r} has shape {shape}")
    make, of_groups = (_rotated, None) if name == "int8" else (_rounded, _groups)
    return Precision(name, make, make, of_groups, pad_rows=lambda count: count)


def _rotated(weight: F32, bias: F32 | None) -> Linear:
    return IntegerLinear(packed(rotated(weight)), bias)


def _rounded(weight: F32, bias: F32 | None) -> Linear:
    return IntegerLinear(packed(rounded(weight)), bias)


def _groups(weights: GroupWeights, bias: F32 | None) -> Linear:
    return IntegerLinear(packed(weights), bias)
