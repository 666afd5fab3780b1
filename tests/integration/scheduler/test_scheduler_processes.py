"""The scheduler as a process in front of real executor processes (fake backend): signals, kills, freezing, recordings."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from drumline.trace.reader import open_recordings
from scheduler_svc.replay.against import replay_against_scheduler
from tests.support.raw_gateway import RawGateway, pb, sequence
from tests.support.service_process import service

EXECUTOR = ("--backend", "fake", "--port", "0", "--fake-eos-chance", "0", "--fake-step-ms", "5", "--num-blocks", "256")


@contextlib.asynccontextmanager
async def two_executors_and_a_scheduler(*flags: str) -> AsyncIterator[tuple[list, object, RawGateway]]:
    async with contextlib.AsyncExitStack() as stack:
        starts = [stack.enter_async_context(service("executor_svc", *EXECUTOR)) for _ in range(2)]
        executors = await asyncio.gather(*starts)
        targets = [word for _, address in executors for word in ("--executor", address)]
        scheduler, address = await stack.enter_async_context(service("scheduler_svc", "--port", "0", *targets, *flags))
        gateway = await stack.enter_async_context(RawGateway(address))
        await ready(gateway, 2)
        yield [process for process, _ in executors], scheduler, gateway


async def ready(gateway: RawGateway, num: int, *, timeout_s: float = 10.0) -> float:
    """Waits until `num` executors are ready; returns how long it took, seconds."""
    since = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while True:
            status = await gateway.stub.GetStatus(pb.GetStatusRequest())
            if sum(one.state == "ready" for one in status.executors) == num:
                return time.monotonic() - since
            await asyncio.sleep(0.02)


def work(num: int = 8) -> list[pb.SequenceRequest]:
    return [sequence([i + 5] * (3 + i), max_tokens=80, seed=i + 1, temperature=float(i % 2)) for i in range(num)]


async def run_disturbed(gateway: RawGateway, disturb) -> None:
    """The same work undisturbed, then disturbed in mid-stream: same tokens, no error."""
    calm = await gateway.submit(*work())
    await gateway.done(*calm, timeout_s=30)
    rough = await gateway.submit(*work())
    await gateway.until(lambda: all(len(gateway.tokens[handle]) > 5 for handle in rough))
    await disturb()
    await gateway.done(*rough, timeout_s=30)
    assert not gateway.errors
    assert [gateway.tokens[handle] for handle in rough] == [gateway.tokens[handle] for handle in calm]


async def test_killed_executor_costs_no_token() -> None:
    """O7, R1, R2."""
    async with two_executors_and_a_scheduler() as (executors, _, gateway):

        async def kill() -> None:
            executors[0].kill()

        await run_disturbed(gateway, kill)
        assert await ready(gateway, 1) < 1


async def test_b076_stopped_executor_is_noticed_within_three_seconds() -> None:
    async with two_executors_and_a_scheduler() as (executors, _, gateway):
        took = 0.0

        async def stop() -> None:
            nonlocal took
            executors[0].send_signal(signal.SIGSTOP)
            took = await ready(gateway, 1)

        await run_disturbed(gateway, stop)
        assert took < 3
        executors[0].send_signal(signal.SIGCONT)
        await ready(gateway, 2)


async def test_terminated_executor_drains_without_an_error() -> None:
    async with two_executors_and_a_scheduler() as (executors, _, gateway):

        async def terminate() -> None:
            executors[0].terminate()

        await run_disturbed(gateway, terminate)
        assert await asyncio.wait_for(executors[0].wait(), 10) == 0


async def test_b079_terminated_scheduler_lets_running_finish_and_exits_zero() -> None:
    async with two_executors_and_a_scheduler() as (_, scheduler, gateway):
        handles = await gateway.submit(*work())
        await gateway.until(lambda: all(gateway.tokens[handle] for handle in handles))
        scheduler.terminate()
        await asyncio.sleep(0.1)
        assert (await gateway.refused(sequence([1]))).refused.code == "draining"
        await gateway.done(*handles)
        assert all(len(gateway.tokens[handle]) == 80 for handle in handles)
        assert await asyncio.wait_for(scheduler.wait(), 10) == 0


async def test_killed_scheduler_can_come_back_at_once_and_the_older_of_two_leaves() -> None:
    async with service("executor_svc", *EXECUTOR) as (_, executor):
        flags = ("--port", "0", "--executor", executor)
        async with service("scheduler_svc", *flags) as (killed, address), RawGateway(address) as gateway:
            await ready(gateway, 1)
            await gateway.submit(*work())
            killed.kill()
            await killed.wait()
        async with service("scheduler_svc", *flags) as (older, address), RawGateway(address) as gateway:
            await ready(gateway, 1)
            await gateway.done(*await gateway.submit(*work()), timeout_s=30)
            async with service("scheduler_svc", *flags) as (_, newer), RawGateway(newer) as other:
                await ready(other, 1)
                assert await asyncio.wait_for(older.wait(), 10) == 1
                await other.done(*await other.submit(*work()), timeout_s=30)


async def test_wrong_executor_address_ends_with_a_name_and_status() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scheduler_svc", "--port", "0", "--executor", "nowhere", stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 1
    assert b"executor 'nowhere' must be host:port" in said


async def test_a_folder_that_cannot_be_recorded_into_ends_with_a_name_and_status(tmp_path: Path) -> None:
    folder = tmp_path / "a-file"
    folder.write_bytes(b"")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scheduler_svc", "--port", "0", "--record", str(folder), stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 1
    assert f"--record {folder}: ".encode() in said
    assert b"Traceback" not in said


async def test_taken_port_ends_with_a_name_and_status() -> None:
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = str(taken.sockets[0].getsockname()[1])
    async with taken:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "scheduler_svc", "--port", port, stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
    assert process.returncode == 1
    assert f"port {port} on 127.0.0.1 cannot be bound".encode() in said
    assert b"Traceback" not in said


async def test_recorded_session_replays_to_byte_identical_plans(tmp_path: Path) -> None:
    async with two_executors_and_a_scheduler("--record", str(tmp_path)) as (executors, scheduler, gateway):
        handles = await gateway.submit(*work())
        await gateway.until(lambda: all(gateway.tokens[handle] for handle in handles))
        await gateway.abort(handles[0])
        executors[0].kill()
        await gateway.done(*handles[1:], timeout_s=30)
        scheduler.terminate()
        assert await asyncio.wait_for(scheduler.wait(), 10) == 0
    (recording,) = open_recordings([tmp_path])
    outcome = replay_against_scheduler(recording, progress=lambda done: None)
    assert outcome.difference is None
    assert outcome.num_plans > 50
