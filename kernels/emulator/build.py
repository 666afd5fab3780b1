"""Compiles a CUDA source with the system's C++ compiler against the emulator's runtime; kept in the user's cache directory."""

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

KERNEL: Final = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(')
"""Finds the names of kernels in a source."""
_HERE: Final = Path(__file__).parent
_HEADERS: Final = _HERE / "headers"
_RUNTIME: Final = tuple(sorted((_HERE / "runtime").glob("*.cpp")))
_OURS: Final = (*_RUNTIME, *sorted((_HERE / "runtime").glob("*.h")), *sorted(_HEADERS.glob("*.h")))
_COMMON: Final = ("-std=c++17", "-fPIC", "-fno-strict-aliasing", "-w")
_FAST: Final = ("-O2",)
_CHECKED: Final = ("-O1", "-gdwarf-4", "-fsanitize=thread", "-fno-tree-vectorize")
"""GCC calls `__tsan_*` at every access to memory; the runtime has its own functions of these names. DWARF 4, for in DWARF 5
addr2line takes the file of a line for the one that g++ was given.
"""


class DoesNotBuild(Exception):
    """The compiler's words, or that there is none."""


def build(name: str, source: str, defines: tuple[tuple[str, int], ...], *, check: bool) -> Path:
    """The shared library of all kernels in `source`. Raises DoesNotBuild."""
    flags = [*_COMMON, *(_CHECKED if check else _FAST), *(f"-D{macro}={value}" for macro, value in defines)]
    key = _key(source, *flags)
    library = _cache() / f"{name}-{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=_cache()) as folder:
            made = _compile(Path(folder), name, source, flags)
            os.replace(made, library)  # whole or not at all: other processes build the same
    return library


def load(library: Path) -> ctypes.CDLL:
    """The library with a state of its own."""
    lib = ctypes.CDLL(str(library))
    lib.cuemu_unwritten.restype = ctypes.c_long
    return lib


def _cache() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drumline" / "emulator"
    root.mkdir(parents=True, exist_ok=True)
    return root


def _key(*texts: str) -> str:
    """Of these and of the emulator itself."""
    ours = (file.read_text(encoding="utf-8") for file in _OURS)
    return hashlib.sha256("\0".join([*texts, *ours]).encode()).hexdigest()[:24]


def _compile(folder: Path, name: str, source: str, flags: list[str]) -> Path:
    exports = "\n".join(f"CUEMU_EXPORT({kernel})" for kernel in KERNEL.findall(source))
    unit, code, library = folder / "unit.cpp", folder / "unit.o", folder / f"{name}.so"
    unit.write_text(f'#include "cuda_on_cpu.h"\n{source}\n{exports}\n', encoding="utf-8")
    _run("g++", *flags, "-I", str(_HEADERS), "-c", str(unit), "-o", str(code))
    _run("g++", "-shared", "-Wl,-Bsymbolic", "-o", str(library), str(code), str(_runtime_object()))
    return library


def _runtime_object() -> Path:
    """The runtime, compiled once and never instrumented."""
    made = _cache() / f"runtime-{_key(*_COMMON, *_FAST)}.o"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=_cache()) as folder:
            whole, out = Path(folder) / "runtime.cpp", Path(folder) / "runtime.o"
            whole.write_text("".join(f'#include "{file}"\n' for file in _RUNTIME), encoding="utf-8")  # one unit: half the time
            _run("g++", *_COMMON, *_FAST, "-c", str(whole), "-o", str(out))
            os.replace(out, made)
    return made


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise DoesNotBuild(f"{command[0]} is not installed; the emulator compiles CUDA sources with it") from None
    if done.returncode:
        raise DoesNotBuild(done.stderr)
