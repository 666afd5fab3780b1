"""Compiles a kernel for a GPU that need not be there, and reads what came of it: registers, spills, parameters."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from kernels.cuda.device import options_of
from kernels.cuda.source import flat_source
from kernels.cuda.spec import Kernel

_PARAM: Final = re.compile(r"\.param (?:\.align \d+ )?\.([a-z]\d+)(?: \.ptr)?(?: \.[a-z]+)?(?: \.align \d+)? \w+")
_USED: Final = re.compile(r"Used (\d+) registers")
_SPILLS: Final = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED: Final = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Binary:
    """One kernel as the compiler made it.

    Attributes:
        params: PTX type of each parameter, such as u64 or f32.
        registers: of a thread. stack_bytes, spill_bytes: of a thread; both 0 in a kernel worth launching.
        shared_bytes: static, of a block.
        ptx: the assembly.
    """

    params: tuple[str, ...]
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    ptx: str


class DoesNotCompile(Exception):
    """The compiler's words."""


@cache
def build(kernel: Kernel, *, arch: str) -> Binary:
    """Compiles for `arch`, such as sm_90. Raises DoesNotCompile. Needs NVRTC (the wheel nvidia-cuda-nvrtc) but no driver."""
    from cupy_backends.cuda.libs import nvrtc

    program = nvrtc.createProgram(flat_source(kernel.source), f"{kernel.source}.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*options_of(kernel), f"--gpu-architecture={arch}", "--ptxas-options=-v"))
        log, ptx = nvrtc.getProgramLog(program), nvrtc.getPTX(program).decode()
    except nvrtc.NVRTCError as error:
        raise DoesNotCompile(f"{kernel.name} for {arch}: {nvrtc.getProgramLog(program) or error}") from None
    finally:
        nvrtc.destroyProgram(program)
    return _read(kernel.name, log, ptx)


def _read(name: str, log: str, ptx: str) -> Binary:
    """The part of the log and of the PTX that is about one function."""
    own = log.split(f"'{name}'", 1)[1].split("Compiling entry function")[0]
    stack, stores, loads = (int(count) for count in _SPILLS.findall(own)[0])
    head = ptx.split(f".entry {name}(", 1)[1].split(")", 1)[0]
    shared = _SHARED.search(own)
    return Binary(
        params=tuple(_PARAM.findall(head)),
        registers=int(_USED.findall(own)[0]),
        stack_bytes=stack,
        spill_bytes=stores + loads,
        shared_bytes=int(shared[1]) if shared else 0,
        ptx=ptx,
    )
