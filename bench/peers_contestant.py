"""What is measured beside Drumline: a server that stands, and the description from which it is installed and started."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import psutil

from bench.client import BenchError, Streamed
from bench.peers_install import Install, last_line
from bench.server import Server
from bench.workloads import Request
from launcher import child

_STOP_S: Final = 20.0
_LINE_BYTES: Final = 1 << 26
"""Of a worker's answer: the times of all tokens of a workload."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a peer is started.

    Attributes:
        python: the interpreter of its virtual environment.
        model: the GGUF file. scratch: a folder for copies of it, which stays.
        log: gets what it says.
    """

    python: Path
    model: Path
    scratch: Path
    log: Path


class Contestant(Protocol):
    """A server that stands."""

    @property
    def server(self) -> Server:
        """Its processes."""
        ...

    async def run(self, streams: Sequence[Sequence[Request]]) -> Sequence[Streamed]:
        """Streams side by side, each one's requests one after the other, greedy and to their exact lengths. Raises BenchError."""
        ...

    async def score(self, window: Sequence[int]) -> Sequence[float]:
        """Natural log-probabilities of all tokens but the first, from those before them. Raises BenchError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One row of the table.

    Attributes:
        venv: name of its virtual environment; peers may share one.
        weights: what it makes of the model file, in words, on this machine.
        in_process: measured without HTTP, which is to its advantage.
        fresh: started anew for each workload, because it slows down with what it did before.
        perplexity_of: text file, windows of 512 tokens -> perplexity as its own tool says; None = from `Contestant.score`.
    """

    name: str
    venv: str
    weights: str
    install: Install
    standing: Callable[[Site], AbstractAsyncContextManager[Contestant]]
    in_process: bool = False
    fresh: bool = False
    perplexity_of: Callable[[Site, Path, int], Awaitable[float]] | None = None


@asynccontextmanager
async def spawned(
    command: Sequence[str], *, log: Path, environ: Mapping[str, str] | None = None, piped: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that ends with the context, and its group with it. When this process is killed, it ends too; its group may not."""
    pipe = asyncio.subprocess.PIPE
    with log.open("ab") as said:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", child.__file__, str(os.getpid())),
            *command,
            stdin=pipe if piped else asyncio.subprocess.DEVNULL,
            stdout=pipe if piped else said,
            stderr=said,
            env=os.environ | (environ or {}),
            start_new_session=True,
            limit=_LINE_BYTES,
        )
        try:
            yield process
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
    finally:
        _signal(process.pid, signal.SIGKILL)
    await process.wait()


def tree_of(pid: int) -> list[psutil.Process]:
    """The process and all below it; nothing when it has ended."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def suspend(pid: int) -> None:
    """Takes the processor away from it and all below it, until `resume`: a peer that waits by spinning disturbs nobody."""
    _signal(pid, signal.SIGSTOP)


def resume(pid: int) -> None:
    """Gives it back."""
    _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> None:
    """To a process, all below it, and its group: what lost its parent is still in that."""
    for one in tree_of(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(number)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def ended(process: asyncio.subprocess.Process, log: Path) -> BenchError:
    """The error of a process that ended when it should not."""
    return BenchError(f"it ended with status {process.returncode}: {last_line(log)}")
