"""How our numba kernels are compiled and cached. `crew` spreads them over threads.

No kernel uses `fastmath`: every operation is an IEEE operation in source order (fused multiply-add only where it is written), so
LLVM may vectorise only what does not change a bit. That, and work items whose arithmetic never looks at another item, is the whole
proof of batch invariance: the same bits alone or in a batch, on one thread or many, with any vector width.

Environment, read at import: NUMBA_CACHE_DIR moves the cache.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.extending
from numba.core.codegen import get_host_cpu_features

F = TypeVar("F", bound=Callable[..., Any])


def _writable(folder: Path) -> bool:
    """Makes `folder` private to this user; False when it cannot be, for the cache holds code that is executed."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.access(folder, os.W_OK)
    except OSError:
        return False


def cache_folder() -> Path:
    """The compile cache of exactly these sources: numba does not notice a change in a file that a kernel calls into."""
    here = Path(__file__).parent
    sources = sorted([*here.glob("*.py"), *here.parent.glob("*.py")])
    version = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    named = os.environ.get("NUMBA_CACHE_DIR")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~").expanduser() / ".cache")
    bases = ([Path(named)] if named else []) + [home / "drumline", Path(tempfile.gettempdir()) / f"drumline-{os.getuid()}"]
    for base in bases:
        if _writable(base / f"kernels-{version}"):
            return base / f"kernels-{version}"
    return Path(tempfile.mkdtemp(prefix="drumline-kernels-"))


numba.config.CACHE_DIR = str(cache_folder())


def processor_has(*features: str) -> bool:
    """Whether code is compiled for a processor with all of these, in LLVM's words; numba's own settings count."""
    told = numba.config.CPU_FEATURES
    known = (get_host_cpu_features() if told is None else told).split(",")
    return all(f"+{feature}" in known for feature in features)


def cache_apart(name: str) -> None:
    """Caches kernels that are defined from now on in a folder of their own: numba does not see which instructions were chosen."""
    folder = Path(numba.config.CACHE_DIR) / name
    folder.mkdir(mode=0o700, exist_ok=True)
    numba.config.CACHE_DIR = str(folder)


def jit(function: F) -> F:
    """Compiles a function that runs on the calling thread, without the GIL."""
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def borrowing(function: F) -> F:
    """As `jit`, for a function that, like all that it calls, makes no array and keeps none: references are not counted, which costs
    a small function more than its work does. Its caller owns what it is given until it returns."""
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy", _nrt=False)(function))


def inlined(function: F) -> F:
    """Merges a function into its callers before they are compiled: each level of calls is otherwise compiled once more."""
    return cast(F, numba.njit(nogil=True, error_model="numpy", inline="always")(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Registers a function that emits LLVM IR; constants passed to it arrive as literal types."""
    return cast(Callable[..., Any], numba.extending.intrinsic(prefer_literal=True)(function))
