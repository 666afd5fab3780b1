"""Processes that a comparison starts itself and talks to through their pipes."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from bench.client import BenchError
from launcher import child

_STOP_S: Final = 10.0
_MOST_LINE_BYTES: Final = 1 << 24


class Child:
    """A `python -m` process: lines in, lines out; its errors go where ours go."""

    def __init__(self, module: str, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self._module = module
        self._process = process

    def say(self, line: str) -> None:
        """Sends a line."""
        if self._process.stdin is not None:
            self._process.stdin.write(f"{line}\n".encode())

    async def line(self, *, timeout_s: float = 60.0) -> str:
        """The next line that it prints. Raises BenchError if it ends first, or says nothing for so long."""
        if self._process.stdout is None:
            raise BenchError(f"no pipe from {self._module}")
        try:
            async with asyncio.timeout(timeout_s):
                text = (await self._process.stdout.readline()).decode().strip()
        except TimeoutError:
            raise BenchError(f"{self._module} said nothing for {timeout_s:g} s") from None
        if not text:
            raise BenchError(f"{self._module} ended")
        return text

    async def answer(self, line: str) -> Any:
        """Sends a line and reads the JSON line that answers it."""
        self.say(line)
        return json.loads(await self.line())


@asynccontextmanager
async def running(module: str, *arguments: str) -> AsyncIterator[Child]:
    """Runs `python -m module`; it ends with the context, and with us if we are killed."""
    service = [sys.executable, "-P", "-m", module, *arguments]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *service),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_MOST_LINE_BYTES,
    )
    try:
        yield Child(module, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
