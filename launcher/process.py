"""One service as a child process: start it, learn its address, stop it, never leave it behind.

A service says `READY <service> host:port` when it serves. One that takes long says `BOUND <service> host:port` before, as soon as
its port is its own: whoever connects from then on waits in the port's queue, so that peers may start meanwhile.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)
Addresses = Mapping[str, str]
"""Name of a ready service -> `host:port`."""

_WRAPPER: Final = str(Path(__file__).with_name("child.py"))
_MAX_LINE_BYTES: Final = 64 * 1024


class StartFailed(Exception):
    """A service ended or stayed silent before its readiness line.

    Attributes:
        code: exit status for the launcher: the service's own, or 1.
    """

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Service:
    """What to run.

    Attributes:
        name: unique, for logs and for `argv_of` of later services.
        command: program and its first arguments, `--port` excluded.
        argv_of: arguments that depend on services started before.
        port: port to ask for on the first start, 0 = any. Later starts ask for the port that was got, so that peers find it again.
        env: environment on top of the launcher's own.
        ready_timeout_s: longest wait for either line.
    """

    name: str
    command: Sequence[str]
    argv_of: Callable[[Addresses], Sequence[str]] = lambda _: ()
    port: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 600.0


class Child:
    """The process of a Service: at most one alive at any time; `address` is that of the last one that had one."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.address = ""
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it lives."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self, addresses: Addresses) -> str:
        """Starts the process and waits until it is ready; returns the address. Raises StartFailed."""
        await self.bind(addresses)
        await self.ready()
        return self.address

    async def bind(self, addresses: Addresses) -> None:
        """Starts the process and waits until its address is known, so that peers may be told it. Raises StartFailed."""
        port = self.address.rpartition(":")[2] or str(self.service.port)
        command = [*self.service.command, "--port", port, *self.service.argv_of(addresses)]
        self._reader = None
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", _WRAPPER, str(os.getpid()), *command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **self.service.env},
            limit=_MAX_LINE_BYTES,
            # Ctrl-C reaches the whole foreground group; services must drain in order instead, when the launcher says so.
            start_new_session=True,
        )
        await self._until_said(self._process, "BOUND", "READY")

    async def ready(self) -> None:
        """Waits until the bound process serves. Raises StartFailed."""
        if self._process is not None and self._reader is None:
            await self._until_said(self._process, "READY")

    async def _until_said(self, process: asyncio.subprocess.Process, *words: str) -> None:
        try:
            async with asyncio.timeout(self.service.ready_timeout_s):
                said, self.address = await self._read_line(process, words)
        except TimeoutError:
            await self.kill()
            raise StartFailed(f"{self.service.name}: not ready after {self.service.ready_timeout_s:g} s", code=1) from None
        if said == "READY":
            self._reader = asyncio.create_task(self._drain_stdout(process))

    async def wait(self) -> int:
        """Waits for the end of the process; its exit status, negative for a signal."""
        return await self._process.wait() if self._process else 0

    async def stop(self, *, timeout_s: float) -> bool:
        """SIGTERM, then SIGKILL when the time is over; whether it ended by itself."""
        if self.pid is None:
            return True
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait()
        except TimeoutError:
            log.warning("%s did not end within %.1f s of SIGTERM and is killed", self.service.name, timeout_s)
            await self.kill()
            return False
        return True

    async def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        if self.pid is not None:
            self._signal(signal.SIGKILL)
        await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _read_line(self, process: asyncio.subprocess.Process, wanted: Sequence[str]) -> tuple[str, str]:
        """First word and address of the first line `WORD <service> host:port` with a wanted word; others go to the log."""
        if process.stdout is None:
            raise StartFailed(f"{self.service.name}: no pipe", code=1)
        async for raw in process.stdout:
            words = raw.decode(errors="replace").split()
            if len(words) == 3 and words[0] in wanted:
                return words[0], words[2]
            log.info("%s: %s", self.service.name, " ".join(words))
        status = await process.wait()
        raise StartFailed(f"{self.service.name}: {describe(status)} before it was ready", code=status if status > 0 else 1)

    async def _drain_stdout(self, process: asyncio.subprocess.Process) -> None:
        """Reads on, so that a service that does print never blocks on a full pipe."""
        if process.stdout is not None:
            while await process.stdout.read(_MAX_LINE_BYTES):
                pass


def describe(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"
