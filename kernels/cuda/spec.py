"""What a CUDA kernel takes: the one description that the CuPy launcher, the emulator and the tests of the binary go by.

Arrays go over as raw pointers and scalars at their declared width; CuPy would send a Python int as 8 bytes whatever the kernel
reads, so nothing but NumPy scalars ever leaves `pack`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

Mode = Literal["in", "out", "inout"]
"""in: only read. out: every byte is written, none is read before. inout: anything else, also what is written in part."""

_STANDS_FOR: Final = {"uint16": "bfloat16"}
"""NumPy has no bfloat16: its bits are taken for it."""


@dataclass(frozen=True, slots=True)
class Array:
    """A pointer argument to C-contiguous memory of the device.

    Attributes:
        dtype: element type by its NumPy or torch name, such as float32 or bfloat16.
        align: bytes that the address is a multiple of; vector loads need it.
        optional: None may be given and arrives as a null pointer.
    """

    name: str
    dtype: str
    mode: Mode = "in"
    align: int = 16
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value argument; `dtype` is a NumPy name such as int32 or float32."""

    name: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One `__global__` function in one configuration; equal ones share a compiled module.

    Attributes:
        source: stem of the file in `kernels/cuda/` that has it.
        name: the function.
        args: in the order of its parameters.
        defines: macro and value, which the source demands. Numbers only: they take part in names and cache keys.
        block: threads of a block.
        shared_bytes: dynamic shared memory of a block.
        blocks_communicate: blocks of one launch read what others write, through atomics; everywhere else that is a race.
    """

    source: str
    name: str
    args: tuple[Array | Scalar, ...]
    defines: tuple[tuple[str, int], ...]
    block: int
    shared_bytes: int = 0
    blocks_communicate: bool = False

    @property
    def module(self) -> tuple[str, tuple[tuple[str, int], ...]]:
        """What is compiled once: source and macros."""
        return self.source, self.defines


@dataclass(frozen=True, slots=True)
class Memory:
    """What a device array says of itself, be it torch's or NumPy's."""

    address: int
    dtype: str
    num_bytes: int
    contiguous: bool


def memory_of(array: Any) -> Memory:
    """Works on what torch tensors and NumPy arrays offer, with neither imported for it."""
    if hasattr(array, "data_ptr"):
        return Memory(array.data_ptr(), str(array.dtype).removeprefix("torch."), array.nbytes, array.is_contiguous())
    if isinstance(array, np.ndarray):
        return Memory(array.ctypes.data, array.dtype.name, array.nbytes, array.flags.c_contiguous)
    raise TypeError(f"want a torch tensor or a NumPy array, got {type(array).__name__}")


def pack(kernel: Kernel, args: Sequence[Any]) -> list[np.generic]:
    """The arguments as they are sent: uint64 addresses and scalars of declared width.

    Raises ValueError naming the argument, for a wrong count, type, memory order, alignment or range.
    """
    if len(args) != len(kernel.args):
        raise ValueError(f"{kernel.name}: want {len(kernel.args)} arguments, got {len(args)}")
    return [_packed(kernel.name, spec, value) for spec, value in zip(kernel.args, args, strict=True)]


def _packed(kernel: str, spec: Array | Scalar, value: Any) -> np.generic:
    if isinstance(spec, Scalar):
        return _scalar(kernel, spec, value)
    if value is None:
        if not spec.optional:
            raise ValueError(f"{kernel}: {spec.name} is missing")
        return np.uint64(0)
    memory = memory_of(value)
    if memory.dtype != spec.dtype and _STANDS_FOR.get(memory.dtype) != spec.dtype:
        raise ValueError(f"{kernel}: {spec.name} is {memory.dtype}, want {spec.dtype}")
    if not memory.contiguous:
        raise ValueError(f"{kernel}: {spec.name} is not C-contiguous")
    if memory.address % spec.align:
        raise ValueError(f"{kernel}: {spec.name} is not aligned to {spec.align} bytes")
    return np.uint64(memory.address)


def _scalar(kernel: str, spec: Scalar, value: Any) -> np.generic:
    dtype: np.dtype[Any] = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return _of(dtype, value)
    if value != int(value) or not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise ValueError(f"{kernel}: {spec.name} is {value}, which {spec.dtype} does not hold")
    return _of(dtype, int(value))


def _of(dtype: np.dtype[Any], value: float) -> np.generic:
    scalar: np.generic = dtype.type(value)
    return scalar


def dtype_of(array: Any) -> str:
    """The element type as descriptions have it."""
    dtype = memory_of(array).dtype
    return _STANDS_FOR.get(dtype, dtype)
