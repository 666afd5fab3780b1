"""One service as a process of its own, the way somebody without the launcher runs it."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextlib.asynccontextmanager
async def service(room: str, *flags: str, ready_s: float = 30.0) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The process and the address of its READY line; killed at the end if it still lives, and when the test run dies."""
    program = [sys.executable, "-m", room, *flags]
    wrapper = [sys.executable, str(ROOT / "launcher" / "child.py"), str(os.getpid())]
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *wrapper, *program, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        try:
            async with asyncio.timeout(ready_s):
                ready = ["BOUND"]
                while ready[:1] == ["BOUND"]:
                    ready = (await process.stdout.readline()).decode().split()
            assert ready[:1] == ["READY"], os.pread(log.fileno(), 2**16, 0).decode()
            yield process, ready[2]
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
