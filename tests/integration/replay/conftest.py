"""A session recorded by a real scheduler process in front of a real executor process (fake backend)."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest

from drumline.rpc import open_channel
from drumline.scheduler.v1.scheduler_pb2 import GetModelRequest
from drumline.scheduler.v1.scheduler_pb2_grpc import SchedulerStub
from tests.support.executor_process import ExecutorProcess
from tests.support.raw_gateway import RawGateway, sequence
from tests.support.recorded_session import prompt

FLAGS = ("--num-blocks", "40", "--max-num-seqs", "8", "--max-num-batched-tokens", "64", "--max-model-len", "256")
SAME_MODEL = ["--executor-arg=--fake-eos-chance=0"]
"""What a replay must be told beyond the handshake: the fake's chance to end is its model."""


class SchedulerProcess:
    """`python -m scheduler_svc` on a free port."""

    def __init__(self, *flags: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DRUMLINE_")}
        command = [sys.executable, "-m", "scheduler_svc", "--port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        self.target = self.process.stdout.readline().split()[2]

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(20)
        self.process.stdout.close()
        return status


async def twenty_requests(target: str) -> None:
    """Greedy and seeded, short and long, with shared prefixes, scores, and one that is withdrawn."""
    source = random.Random(1)
    shared = prompt(99, 40)
    async with RawGateway(target) as gateway:
        handles: list[int] = []
        for index in range(20):
            own = prompt(index, source.randrange(2, 60))
            tokens = [*shared, *own] if index % 3 == 0 else own
            more = {"temperature": 0.8} if index % 2 else {}
            more |= {"logprobs": True, "top_logprobs": 2} if index % 5 == 4 else {}
            one = sequence(tokens, max_tokens=source.randrange(2, 30), seed=index + 1, request_id=f"req-{index}", **more)
            handles += await gateway.submit(one)
            await asyncio.sleep(0.002)
        long = await gateway.submit(sequence(prompt(7, 10), max_tokens=200, seed=5, request_id="withdrawn"))
        await gateway.done(*handles)
        await gateway.abort(*long)
        await asyncio.sleep(0.8)  # longer than frames may wait to be written


def record(folder: Path, *, end: int = signal.SIGTERM) -> Path:
    with ExecutorProcess(*FLAGS) as executor:
        scheduler = SchedulerProcess("--executor", executor.target, "--record", str(folder), "--want-digests")
        try:
            asyncio.run(_ready_then(scheduler.target))
        finally:
            scheduler.end(end)
    return folder


async def _ready_then(target: str) -> None:
    async with open_channel(target) as channel:
        for _ in range(200):
            try:
                await SchedulerStub(channel).GetModel(GetModelRequest())
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)
    await twenty_requests(target)


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("session") / "d")
