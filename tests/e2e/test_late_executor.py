"""An executor that is started while clients stream is found at its address and shares their work within seconds."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from tests.support.generate import Answer, complete
from tests.support.service_process import service
from tests.support.shared_inputs import PROMPTS

STREAMS = {f"{PROMPTS[index % len(PROMPTS)]} ({index})": 4 + index % 8 for index in range(16)}
"""Prompt -> output tokens; of different lengths, so that at any time some stream is about to begin again."""
WANTED = {"ignore_eos": True, "temperature": 0.8, "seed": 11}
EXECUTOR = ("--precision", "f32", "--num-threads", "1", "--kv-memory", "256MiB")


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


@asynccontextmanager
async def one_executor_of_two(late: str) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway in front of a scheduler that dials two addresses, with an executor at one of them."""
    async with AsyncExitStack() as stack:
        _, first = await stack.enter_async_context(service("executor_svc", "--port", "0", *EXECUTOR, ready_s=120))
        flags = ("--executor", first, "--executor", late)
        _, scheduler = await stack.enter_async_context(service("scheduler_svc", "--port", "0", *flags))
        _, gateway = await stack.enter_async_context(service("gateway", "--port", "0", "--scheduler", scheduler))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://{gateway}", timeout=120))
        async with asyncio.timeout(30):
            while (await http.get("/ready")).status_code != 200:
                await asyncio.sleep(0.05)
        yield http


@asynccontextmanager
async def streaming(http: httpx.AsyncClient) -> AsyncIterator[dict[str, list[Answer]]]:
    """16 clients, each streaming its own prompt again and again until the block ends; what each has got."""
    answers: dict[str, list[Answer]] = {prompt: [] for prompt in STREAMS}
    enough = asyncio.Event()

    async def client(prompt: str) -> None:
        while not enough.is_set():
            answers[prompt].append(await complete(http, prompt, stream=True, max_tokens=STREAMS[prompt], **WANTED))

    async with asyncio.TaskGroup() as group:
        for prompt in STREAMS:
            group.create_task(client(prompt))
        yield answers
        enough.set()


async def rows_of(executor: str, *, http: httpx.AsyncClient) -> int:
    """Sequences that this executor holds; 0 while it is not linked."""
    status = (await http.get("/status")).json()
    return sum(int(one.get("num_resident", 0)) for one in status["executors"] if one["address"] == executor)


async def test_an_executor_started_under_load_gets_rows_within_5_s() -> None:
    """16 streams are running when the second executor starts: no client error, and every text is the same as alone."""
    late = free_address()
    async with one_executor_of_two(late) as http, AsyncExitStack() as until_all_is_answered:
        alone = {prompt: await complete(http, prompt, max_tokens=num, **WANTED) for prompt, num in STREAMS.items()}
        async with streaming(http) as answers:
            while not all(answers.values()):
                await asyncio.sleep(0.05)
            late_one = service("executor_svc", "--port", late.rpartition(":")[2], *EXECUTOR, ready_s=120)
            await until_all_is_answered.enter_async_context(late_one)
            async with asyncio.timeout(5.0):
                while not await rows_of(late, http=http):
                    await asyncio.sleep(0.02)
            before = {prompt: len(got) for prompt, got in answers.items()}
            while not all(len(got) > before[prompt] + 1 for prompt, got in answers.items()):
                await asyncio.sleep(0.05)
    for prompt, got in answers.items():
        assert [answer.error for answer in got] == [None] * len(got)
        assert [answer.same() for answer in got] == [alone[prompt].same()] * len(got)
