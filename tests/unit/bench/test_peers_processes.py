"""A peer's processes: suspended with all that they started, ended with all that they started, suspended or orphaned."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from bench.peers_contestant import resume, spawned, suspend, tree_of

PARENT = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)']); time.sleep(100)"


async def family(pid: int) -> list[psutil.Process]:
    """The process and its child, once that is there."""
    async with asyncio.timeout(20):
        while len(tree_of(pid)) < 2:
            await asyncio.sleep(0.05)
    return tree_of(pid)


async def until_stopped(processes: list[psutil.Process], *, stopped: bool) -> None:
    async with asyncio.timeout(20):
        while any((one.status() == psutil.STATUS_STOPPED) != stopped for one in processes):
            await asyncio.sleep(0.05)


async def test_a_peer_is_suspended_and_resumed_with_its_children(tmp_path: Path) -> None:
    async with spawned([sys.executable, "-c", PARENT], log=tmp_path / "log") as process:
        processes = await family(process.pid)
        suspend(process.pid)
        await until_stopped(processes, stopped=True)
        resume(process.pid)
        await until_stopped(processes, stopped=False)
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive


@pytest.mark.parametrize("orphaned", [False, True])
async def test_children_of_a_peer_end_with_it_even_suspended_and_without_their_parent(tmp_path: Path, orphaned: bool) -> None:
    async with spawned([sys.executable, "-c", PARENT], log=tmp_path / "log") as process:
        first, child = await family(process.pid)
        if orphaned:
            first.kill()
            await process.wait()
        child.suspend()
    _, alive = psutil.wait_procs([child], timeout=10)
    assert not alive
