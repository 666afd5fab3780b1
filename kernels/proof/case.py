"""One case: arrays, a launch, and what must come out of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cuda.device import Device

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """Something a kernel is asked to do. bfloat16 arrays are their bits, uint16, as NumPy has no such type.

    Attributes:
        name: unique within a stem.
        arrays: every array that the launch takes, outputs among them; made anew by each call, so that a run may change them.
        launch: runs the kernels on a device, given the same arrays as that device has them.
        expected: name of an array -> what it must hold afterwards: float64 for floating results, else compared bit for bit. NaN
            stands for what may be anything.
        untouched: arrays in which NaN of `expected` means NaN: poison that nobody may write, or a row that must say so.
        tolerance: largest relative error of a floating result as a whole, |got - want| / |want|.
        twin: the same by the CPU twin, from the arrays; None where there is none.
    """

    name: str
    arrays: Callable[[], Arrays]
    launch: Callable[[Device, Mapping[str, Any]], None]
    expected: Arrays
    untouched: tuple[str, ...] = ()
    tolerance: float = 0.0
    twin: Callable[[Arrays], Arrays] | None = field(default=None, compare=False)


def faults(case: Case, results: Mapping[str, NDArray[Any]]) -> list[str]:
    """What is wrong with the results, in words; empty = nothing."""
    found = []
    for name, want in case.expected.items():
        got = results[name]
        if want.dtype != np.float64:
            got = got.view(want.dtype)
            if not np.array_equal(got, want):
                found.append(f"{name}: {int((got != want).sum())} of {want.size} elements differ")
            continue
        counts = ~np.isnan(want)
        if name in case.untouched and not np.isnan(floats(got)[~counts]).all():
            found.append(f"{name}: something was written where nothing may be")
        value = floats(got)[counts]
        error = float(np.linalg.norm(value - want[counts]) / max(float(np.linalg.norm(want[counts])), 1e-30))
        if not error <= case.tolerance:
            found.append(f"{name}: relative error {error:.2g}, at most {case.tolerance:.2g} is right")
    return found


def floats(array: NDArray[Any]) -> NDArray[np.float64]:
    """float64 of any floating array, bfloat16 bits among them."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def bfloat16(array: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of float32 numbers rounded to nearest even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def elements(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The array as a device has elements of type float32 or bfloat16."""
    return bfloat16(array) if dtype == "bfloat16" else np.ascontiguousarray(array, np.float32)


def poison(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """An output that nobody has written: NaN, or the worst integer."""
    if dtype == "bfloat16":
        return np.full(shape, 0x7FFF, np.uint16)
    kind = np.dtype(dtype)
    return np.full(shape, np.nan if kind.kind == "f" else np.iinfo(kind).min, kind)
