"""What the warps of a kernel ask memory for: sectors of global memory, wavefronts of shared memory, and how few would do."""

import ctypes
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Verb = Literal["read", "write", "atomic"]
_VERBS: Final[tuple[Verb, ...]] = ("read", "write", "atomic")
_AT_ONCE: Final = 1024


class _Site(ctypes.Structure):
    """As the runtime has it."""

    _fields_ = (
        ("array", ctypes.c_char * 32),
        ("offset", ctypes.c_uint64),
        ("verb", ctypes.c_uint32),
        ("shared", ctypes.c_uint32),
        ("requests", ctypes.c_uint64),
        ("cost", ctypes.c_uint64),
        ("ideal", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one instruction to one array. A request is what the lanes of a warp ask for at once.

    Attributes:
        kernel: the function.
        array: the argument's name, "shared memory" or "dynamic shared memory".
        verb: what the instruction does. `cp.async` reads one array and writes another.
        shared: whether `cost` counts wavefronts (each bank gives 4 bytes a wavefront) instead of sectors (of 32 bytes).
        cost: how many were asked for; lanes that ask for the same bytes ask once.
        ideal: how few would do for as many bytes.
        library: the compiled kernel, and in it the place behind the instruction. See `line_of`.
    """

    kernel: str
    array: str
    verb: Verb
    shared: bool
    requests: int
    cost: int
    ideal: int
    library: Path
    offset: int


def collect(lib: ctypes.CDLL, *, kernel: str, library: Path) -> list[Traffic]:
    """What the launches since the last call asked for."""
    sites, found = (_Site * _AT_ONCE)(), []
    while count := lib.cuemu_take_sites(sites, _AT_ONCE):
        for site in sites[:count]:
            numbers = (site.requests, site.cost, site.ideal)
            found.append(Traffic(kernel, site.array.decode(), _VERBS[site.verb], bool(site.shared), *numbers, library, site.offset))
    return found


def excess(traffic: Iterable[Traffic]) -> dict[tuple[str, str, Verb], float]:
    """(kernel, array, verb) -> cost over ideal, at least 1. The efficiency of global access is its inverse, and the factor of bank
    conflicts is it itself.
    """
    cost: dict[tuple[str, str, Verb], int] = {}
    ideal: dict[tuple[str, str, Verb], int] = {}
    for one in traffic:
        key = (one.kernel, one.array, one.verb)
        cost[key] = cost.get(key, 0) + one.cost
        ideal[key] = ideal.get(key, 0) + one.ideal
    return {key: cost[key] / ideal[key] for key in cost}


def line_of(traffic: Traffic) -> str:
    """File and line of the instruction, "??:0" where the compiler kept none. Needs binutils, without which g++ does not work."""
    command = ["addr2line", "-s", "-e", str(traffic.library), hex(traffic.offset - 1)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(" ")[0].strip()
