"""Compiles a CUDA source with the system's C++ compiler against the emulator's runtime; kept in the user's cache directory."""

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Final

KERNEL: Final = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(')
"""Finds the names of kernels in a source."""
_RUNTIME: Final = ("cuemu.h", "cuemu_rt.cpp")
_COMMON: Final = ("-std=c++17", "-fPIC", "-fno-strict-aliasing", "-w")
_FAST: Final = ("-O2",)
_CHECKED: Final = ("-O1", "-g", "-fsanitize=thread", "-fno-tree-vectorize")
"""GCC calls `__tsan_*` at every access to memory; the runtime has its own functions of these names."""


class DoesNotBuild(Exception):
    """The compiler's words, or that there is none."""


def build(name: str, source: str, defines: tuple[tuple[str, int], ...], *, check: bool) -> Path:
    """The shared library of all kernels in `source`. Raises DoesNotBuild."""
    flags = [*_COMMON, *(_CHECKED if check else _FAST), *(f"-D{macro}={value}" for macro, value in defines)]
    runtime = [(files(__package__) / file).read_text(encoding="utf-8") for file in _RUNTIME]
    key = hashlib.sha256("\0".join([source, *flags, *runtime]).encode()).hexdigest()[:24]
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


def _compile(folder: Path, name: str, source: str, flags: list[str]) -> Path:
    with_header = ["-I", str(files(__package__))]
    exports = "\n".join(f"CUEMU_EXPORT({kernel})" for kernel in KERNEL.findall(source))
    (folder / "unit.cpp").write_text(f'#include "cuemu.h"\n{source}\n{exports}\n', encoding="utf-8")
    _run("g++", *flags, *with_header, "-c", str(folder / "unit.cpp"), "-o", str(folder / "unit.o"))
    _run("g++", "-shared", "-Wl,-Bsymbolic", "-o", str(folder / f"{name}.so"), str(folder / "unit.o"), str(_runtime_object()))
    return folder / f"{name}.so"


def _runtime_object() -> Path:
    """The runtime, compiled once and never instrumented."""
    texts = [(files(__package__) / file).read_bytes() for file in _RUNTIME]
    made = _cache() / f"runtime-{hashlib.sha256(b''.join(texts)).hexdigest()[:24]}.o"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=_cache()) as folder:
            out = Path(folder) / "runtime.o"
            _run(
                "g++",
                *_COMMON,
                "-O2",
                "-I",
                str(files(__package__)),
                "-c",
                str(files(__package__) / "cuemu_rt.cpp"),
                "-o",
                str(out),
            )
            os.replace(out, made)
    return made


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise DoesNotBuild(f"{command[0]} is not installed; the emulator compiles CUDA sources with it") from None
    if done.returncode:
        raise DoesNotBuild(done.stderr)
