"""Executors that come, go and die while clients stream."""

import asyncio
import signal
import time

from tests.support import shared_inputs as shared
from tests.support.generate import complete_all, complete_each
from tests.support.served import Served

PROMPTS = [f"{prompt} ({index})" for index, prompt in enumerate(shared.PROMPTS)]
LONG = {"max_tokens": 64, "ignore_eos": True, "stream": True, "temperature": 0.8, "seed": 11}


def rows_of(served: Served) -> list[int]:
    return [int(executor.get("num_resident", 0)) for executor in served.status()["executors"] if executor["state"] == "ready"]


async def wait_spread(served: Served, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if len(rows := await asyncio.to_thread(rows_of, served)) == 2 and all(rows):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"rows never spread: {served.status()}")


async def test_o7_b092_kill_9_loses_and_doubles_nothing() -> None:
    """kill -9 to one of two executors in mid-stream: same text, same usage, no client error."""
    with Served("--precision", "f32", "--executors", "2") as served:
        undisturbed = await complete_all(served.url, PROMPTS, **LONG)
        load = asyncio.create_task(complete_all(served.url, PROMPTS, **LONG))
        await wait_spread(served)
        served.children("executor")[0].send_signal(signal.SIGKILL)
        moved = await load
        assert [a.error for a in moved] == [None] * len(moved)
        assert [a.same() for a in moved] == [a.same() for a in undisturbed]
        served.wait_idle()


async def test_sigterm_to_one_executor_drains_without_client_errors() -> None:
    with Served("--precision", "f32", "--executors", "2") as served:
        load = asyncio.create_task(complete_all(served.url, PROMPTS, **LONG))
        await wait_spread(served)
        served.children("executor")[0].send_signal(signal.SIGTERM)
        drained = await load
        assert [(a.error, a.usage["completion_tokens"]) for a in drained] == [(None, 64)] * len(drained)
        served.wait_idle()


async def test_b076_the_only_executor_dies_and_comes_back() -> None:
    with Served("--precision", "f32") as served:
        expected = await complete_each(served.url, PROMPTS[:1], **LONG)
        load = asyncio.create_task(complete_all(served.url, PROMPTS[:1], **LONG))
        await asyncio.sleep(0.5)
        served.children("executor")[0].send_signal(signal.SIGKILL)
        assert [a.same() for a in await load] == [a.same() for a in expected]
        served.wait_ready()
