"""Executors that come, go and die while clients stream."""

import asyncio
import signal
import time
from collections.abc import Iterator

import pytest

from tests.support import shared_inputs as shared
from tests.support.generate import complete_all, complete_each
from tests.support.served import Served

PROMPTS = [f"{prompt} ({index})" for index, prompt in enumerate(shared.PROMPTS)]
LONG = {"max_tokens": 64, "ignore_eos": True, "stream": True, "temperature": 0.8, "seed": 11}


def rows_of(served: Served) -> list[int]:
    return [int(executor.get("num_resident", 0)) for executor in served.status()["executors"] if executor["state"] == "ready"]


async def wait_for_two(served: Served, *, num_rows: int, timeout_s: float = 60.0) -> None:
    """Until two executors are ready and each holds `num_rows` rows or more."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        rows = await asyncio.to_thread(rows_of, served)
        if len(rows) == 2 and min(rows) >= num_rows:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"never two with {num_rows} rows each: {served.status()}")


@pytest.fixture(scope="module")
def two() -> Iterator[Served]:
    """Two executors; the launcher starts the one that a test ended again."""
    with Served("--precision", "f32", "--executors", "2") as served:
        yield served


async def test_o7_b092_kill_9_loses_and_doubles_nothing(two: Served) -> None:
    """kill -9 to one of two executors in mid-stream: same text, same usage, no client error."""
    undisturbed = await complete_all(two.url, PROMPTS, **LONG)
    load = asyncio.create_task(complete_all(two.url, PROMPTS, **LONG))
    await wait_for_two(two, num_rows=1)
    two.children("executor")[0].send_signal(signal.SIGKILL)
    moved = await load
    assert [a.error for a in moved] == [None] * len(moved)
    assert [a.same() for a in moved] == [a.same() for a in undisturbed]
    two.wait_idle()


async def test_sigterm_to_one_executor_drains_without_client_errors(two: Served) -> None:
    await wait_for_two(two, num_rows=0)
    load = asyncio.create_task(complete_all(two.url, PROMPTS, **LONG))
    await wait_for_two(two, num_rows=1)
    two.children("executor")[0].send_signal(signal.SIGTERM)
    drained = await load
    assert [(a.error, a.usage["completion_tokens"]) for a in drained] == [(None, 64)] * len(drained)
    two.wait_idle()


async def test_b076_the_only_executor_dies_and_comes_back(served: Served) -> None:
    expected = await complete_each(served.url, PROMPTS[:1], **LONG)
    load = asyncio.create_task(complete_all(served.url, PROMPTS[:1], **LONG))
    await asyncio.sleep(0.5)
    served.children("executor")[0].send_signal(signal.SIGKILL)
    assert [a.same() for a in await load] == [a.same() for a in expected]
    served.wait_ready()
