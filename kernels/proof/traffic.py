"""How a family's kernels may use memory: no sector asked for in vain, no two lanes in a bank, but where a reason is given."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kernels.cuda.device import Device
from kernels.proof.case import Case

RULE: Final = 1.1
"""Most sectors of global memory, and wavefronts of shared memory, for each that would do. Atomics go where data says: no rule."""
SLACK: Final = 1.25
"""An exception may allow so many times what is measured: it is there to say what is so, not to let anything through."""
_ALIGNMENT: Final = 256
"""As every GPU allocator has it; NumPy's 16 would cut vectors that lie in one sector there."""

Key = tuple[str, str, str]
"""Function, array or kind of shared memory, and "read", "write" or "atomic"."""


@dataclass(frozen=True, slots=True)
class Exempt:
    """Where the rule does not hold, and why that is right."""

    function: str
    array: str
    verb: str
    most: float
    why: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """What holds for the traffic of a family.

    Attributes:
        cases: names of its cases that stand for real use: the type and the sizes that models have. All its functions are launched.
        exceptions: of the rule.
    """

    cases: tuple[str, ...]
    exceptions: tuple[Exempt, ...] = ()


def launch(bounds: Bounds, cases: Iterable[Case], device: Device) -> None:
    """Launches the cases that stand for real use, on arrays that lie as on a GPU."""
    for case in cases:
        if case.name in bounds.cases:
            case.launch(device, {name: _aligned(array) for name, array in case.arrays().items()})


def excesses(bounds: Bounds, measured: Mapping[Key, float]) -> list[str]:
    """What is wrong with what was measured, cost over ideal, in words; empty = nothing."""
    allowed = {(e.function, e.array, e.verb): e.most for e in bounds.exceptions}
    found = [
        f"{' '.join(key)}: {value:.2f} times the traffic that would do, at most {allowed.get(key, RULE):.2f} is right"
        for key, value in measured.items()
        if value > allowed.get(key, RULE) and (key[2] != "atomic" or key in allowed)
    ]
    for key, most in allowed.items():
        if key not in measured:
            found.append(f"{' '.join(key)}: an exception for what does not occur")
        elif measured[key] * SLACK < most:
            found.append(f"{' '.join(key)}: {most:.2f} is allowed, {measured[key]:.2f} is needed")
    return found


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy."""
    room = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
