"""A `Device` that runs kernels on the processor, one fiber a thread, and says what they do wrong."""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels.cuda.device import Grid
from kernels.cuda.source import flat_source
from kernels.cuda.spec import Array, Kernel, memory_of, pack
from kernels.emulator.build import build, load
from kernels.emulator.traffic import Traffic, collect

_MODES = {"in": 0, "inout": 1, "out": 2}
_MESSAGE_BYTES = 2048


class KernelFault(RuntimeError):
    """What a kernel did that a GPU would not forgive, or would forgive in silence: where, by whom, to which argument."""


class EmulatedDevice:
    """See `Device`; arrays lie in the processor's memory. Launches run at once.

    Fast mode finds deadlocks, divergence, and use of what was not written (poisoned with NaN). Check mode, some 30 times slower,
    looks at every access: bounds, alignment, writes to inputs, uninitialised reads, races in a block and across blocks, outputs not
    written.

    Args:
        check: check mode.
        profile: check mode that counts requests to memory as well, into `traffic`.
        seed: order of threads and blocks, and whether `cp.async` lands early or late; results must not depend on it.
        source: text of a stem, for those who plant bugs.

    Attributes:
        traffic: requests of all launches so far, launch after launch.
    """

    def __init__(
        self, *, check: bool = False, profile: bool = False, seed: int = 0, source: Callable[[str], str] = flat_source
    ) -> None:
        self.check = check or profile
        self.traffic: list[Traffic] = []
        self._profile = profile
        self.seed = seed
        self._source = source
        self._libraries: dict[object, tuple[Path, ctypes.CDLL]] = {}

    def prepare(self, kernel: Kernel) -> None:
        """See `Device`. Raises DoesNotBuild."""
        self._library(kernel)

    def launch(self, kernel: Kernel, grid: Grid, args: Sequence[Any]) -> None:
        """See `Device`. Raises KernelFault, besides."""
        if 0 in grid:
            return
        library, lib = self._library(kernel)
        packed = pack(kernel, args)
        self._compare_signature(lib, kernel, packed)
        outputs = self._register(lib, kernel, args)
        buffers = [ctypes.create_string_buffer(value.tobytes(), value.itemsize) for value in packed]
        pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        dims = [(ctypes.c_uint * 3)(*(*size, 1, 1)[:3]) for size in (grid, (kernel.block,))]
        error = ctypes.create_string_buffer(_MESSAGE_BYTES)
        call = getattr(lib, f"cuemu_call_{kernel.name}")
        modes = (int(self.check), int(self._profile), int(kernel.blocks_communicate))
        failed = lib.cuemu_launch(call, pointers, *dims, kernel.shared_bytes, self.seed, *modes, error, _MESSAGE_BYTES)
        if failed:
            raise KernelFault(f"{kernel.name}: {error.value.decode(errors='replace')}")
        for place, name in outputs:
            if self.check and (missing := lib.cuemu_unwritten(place)):
                raise KernelFault(f"{kernel.name}: {missing} bytes of {name} were never written")
        if self._profile:
            self.traffic += collect(lib, kernel=kernel.name, library=library)

    def _library(self, kernel: Kernel) -> tuple[Path, ctypes.CDLL]:
        if kernel.module not in self._libraries:
            library = build(kernel.source, self._source(kernel.source), kernel.defines, check=self.check)
            self._libraries[kernel.module] = library, load(library)
        return self._libraries[kernel.module]

    @staticmethod
    def _compare_signature(lib: ctypes.CDLL, kernel: Kernel, packed: Sequence[np.generic]) -> None:
        """Sizes as C++ sees the parameters, negative for floating ones."""
        sizes = (ctypes.c_int * 64)()
        count = getattr(lib, f"cuemu_signature_{kernel.name}")(sizes)
        given = [-value.itemsize if isinstance(value, np.floating) else value.itemsize for value in packed]
        if given != list(sizes[:count]):
            raise KernelFault(f"{kernel.name}: parameters of {list(sizes[:count])} bytes were sent {given} (negative: floating)")

    def _register(self, lib: ctypes.CDLL, kernel: Kernel, args: Sequence[Any]) -> list[tuple[int, str]]:
        """Tells the runtime which memory each argument is; gives place and name of those that must be written in full."""
        lib.cuemu_forget_arrays()
        outputs, place = [], 0
        for spec, value in zip(kernel.args, args, strict=True):
            if not isinstance(spec, Array) or value is None or not (memory := memory_of(value)).num_bytes:
                continue
            if self.check or spec.mode == "out":
                address, size = ctypes.c_void_p(memory.address), ctypes.c_size_t(memory.num_bytes)
                lib.cuemu_name_array(address, size, _MODES[spec.mode], spec.name.encode()[:31])
                if spec.mode == "out":
                    outputs.append((place, spec.name))
                place += 1
        return outputs
