"""A peer's virtual environment: made on first use, with pip as the user configured it, and found again by the version in it."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.client import BenchError

_VERSION: Final = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


@dataclass(frozen=True, slots=True)
class Install:
    """What a peer needs.

    Attributes:
        distribution, version: what is looked for, and asked of pip.
        first: requirements that are installed before it, and stay as they are when it is.
        unwanted: distributions that it pulls in and that harm it.
    """

    distribution: str
    version: str
    first: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()


def python_of(venv: Path) -> Path:
    """The interpreter of a virtual environment."""
    return venv / "bin" / "python"


def commands(install: Install, venv: Path) -> list[list[str]]:
    """What makes the environment, in order."""
    pip = [str(python_of(venv)), "-m", "pip"]
    return [
        [sys.executable, "-m", "venv", "--clear", str(venv)],
        *([[*pip, "install", *install.first]] if install.first else []),
        [*pip, "install", f"{install.distribution}=={install.version}", *install.first],
        *([[*pip, "uninstall", "--yes", *install.unwanted]] if install.unwanted else []),
    ]


async def installed(install: Install, venv: Path) -> Path:
    """The environment's interpreter, once everything is in it. What pip says goes to `VENV.log`. Raises BenchError."""
    python = python_of(venv)
    if await _version_in(python, install.distribution) == install.version:
        return python
    venv.parent.mkdir(parents=True, exist_ok=True)
    log = venv.with_name(f"{venv.name}.log")
    with log.open("wb") as file:
        for command in commands(install, venv):
            process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file)
            if await _ended(process):
                raise BenchError(f"{' '.join(command[2:4])} failed: {last_line(log)}")
    return python


def last_line(log: Path) -> str:
    """The end of a log, for an error message."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


async def _version_in(python: Path, distribution: str) -> str:
    try:
        return await output_of([str(python), "-c", _VERSION, distribution])
    except OSError:
        return ""  # no such environment yet


async def output_of(command: Sequence[str], *, errors_too: bool = False) -> str:
    """What a short command prints, with or without its errors."""
    errors = asyncio.subprocess.STDOUT if errors_too else asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors
    )
    try:
        said, _ = await process.communicate()
    finally:
        await _end(process)
    return said.decode(errors="replace").strip()


async def _ended(process: asyncio.subprocess.Process) -> int:
    try:
        return await process.wait()
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Nothing goes on behind a Ctrl-C."""
    if process.returncode is None:
        process.kill()
        await process.wait()
