"""Drain, death and health of a real executor process."""

import asyncio
import signal
import socket
import subprocess
import sys
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from drumline import rpc
from drumline.errors import Draining
from executor_svc.lifecycle import READINESS
from tests.support.executor_process import ExecutorProcess, Stream, opening, prompt_rows, stub_of

PROMPT = {0: [5, 6, 7]}
BLOCKS = {0: [0, 1, 2, 3]}
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def health_of(target: str, service: str = "") -> int:
    async with rpc.open_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)).status


async def wait_until_health(target: str, wanted: int, service: str = "") -> None:
    deadline = time.monotonic() + 5
    while await health_of(target, service) != wanted:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
async def test_b079_sigterm_lets_resident_sequences_finish_then_exits_0(name: signal.Signals) -> None:
    with ExecutorProcess("--fake-step-ms", "5") as executor:
        async with stub_of(executor.target) as stub:
            stream = await Stream.open(stub)
            await stream.step(**prompt_rows(PROMPT, blocks=BLOCKS, max_tokens=30))
            executor.process.send_signal(name)
            await wait_until_health(executor.target, NOT_SERVING, READINESS)
            assert await health_of(executor.target) == SERVING, "its device works: a scheduler that watches it lets it drain"
            for _ in range(28):
                assert not (await stream.step(repeat_rows=True)).finished_row
            assert [notice.grace_ms for notice in stream.notices] == [30_000]
            with pytest.raises(Draining):
                await Stream.open(stub)
            last = await stream.step(repeat_rows=True)
            assert list(last.finished_row) == [0]
            assert await asyncio.to_thread(executor.wait, 5) == 0
            with pytest.raises(Draining):
                await stream.result()


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_loads_ends_the_process_at_once_and_quietly(name: signal.Signals) -> None:
    script = (
        "import executor_svc.__main__ as executor, time\n"
        "def load(told):\n"
        "    print('loading', flush=True)\n"
        "    try:\n"
        "        time.sleep(60)\n"
        "    except BaseException:\n"  # as loaders do that call back into Python
        "        time.sleep(60)\n"
        "executor.make_backend = load\n"
        "executor.main(['--port', '0'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("BOUND executor ")
        assert process.stdout.readline() == "loading\n"
        process.send_signal(name)
        _, errors = process.communicate(timeout=5)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_another_thread_gets_ends_the_process_though_its_main_thread_is_in_c(name: str) -> None:
    """As one does that arrives after the main thread's last look for signals and before its long call: nothing interrupts it."""
    script = (
        "import signal, threading, time\n"
        "from drumline import startup\n"
        "startup.exit_on_signals()\n"
        "other = threading.Thread(target=time.sleep, args=(60,), daemon=True)\n"
        "other.start()\n"
        f"threading.Timer(0.5, lambda: signal.pthread_kill(other.ident, signal.{name})).start()\n"
        "time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def test_an_idle_executor_drains_at_once() -> None:
    with ExecutorProcess() as executor:
        started = time.monotonic()
        executor.process.terminate()
        assert await asyncio.to_thread(executor.wait, 5) == 0
        assert time.monotonic() - started < 4


async def test_the_drain_timeout_bounds_a_scheduler_that_never_finishes() -> None:
    with ExecutorProcess("--drain-timeout-s", "0.5") as executor:
        async with stub_of(executor.target) as stub:
            stream = await Stream.open(stub)
            await stream.step(**prompt_rows(PROMPT, blocks=BLOCKS))
            executor.process.terminate()
            assert await asyncio.to_thread(executor.wait, 8) == 0


async def test_a_second_signal_ends_the_drain() -> None:
    with ExecutorProcess() as executor:
        async with stub_of(executor.target) as stub:
            stream = await Stream.open(stub)
            await stream.step(**prompt_rows(PROMPT, blocks=BLOCKS))
            executor.process.terminate()
            await wait_until_health(executor.target, NOT_SERVING, READINESS)
            executor.process.terminate()
            assert await asyncio.to_thread(executor.wait, 8) == 0


async def test_b056_b080_a_killed_scheduler_leaves_nothing_and_the_next_one_takes_over_at_once() -> None:
    """kill -9 to a scheduler in mid-stream: its blocks are free, the executor serves on, idle books are exact."""
    script = (
        "import asyncio, sys\n"
        "from tests.support.executor_process import *\n"
        "async def main():\n"
        "    async with stub_of(sys.argv[1]) as stub:\n"
        "        stream = await Stream.open(stub)\n"
        "        await stream.step(**prompt_rows({0: [5, 6, 7], 1: [8]}, blocks={0: [0], 1: [1]}, max_tokens=100))\n"
        "        print('running', flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with ExecutorProcess("--fake-step-ms", "2") as executor:
        scheduler = subprocess.Popen([sys.executable, "-c", script, executor.target], stdout=subprocess.PIPE, text=True)
        assert await asyncio.to_thread(scheduler.stdout.readline) == "running\n"
        scheduler.kill()
        scheduler.communicate()
        async with stub_of(executor.target) as stub:
            stream = await Stream.open(stub)
            first = await stream.step()
            assert (first.num_blocks_in_use, len(first.row_errors)) == (0, 0)
            result = await stream.step(**prompt_rows(PROMPT, blocks=BLOCKS, max_tokens=2))
            assert result.num_blocks_in_use == 4
            assert (await stream.step(repeat_rows=True)).num_blocks_in_use == 0
        executor.process.terminate()
        assert await asyncio.to_thread(executor.wait, 5) == 0


async def test_a_cancelled_stream_ends_its_session_while_a_step_runs() -> None:
    with ExecutorProcess("--fake-step-ms", "200") as executor:
        async with stub_of(executor.target) as stub:
            stream = await Stream.open(stub)
            await stream.send(**prompt_rows(PROMPT, blocks=BLOCKS))
            await stream.send(repeat_rows=True)
            await asyncio.sleep(0.05)
            stream.call.cancel()
            started = time.monotonic()
            assert (await (await Stream.open(stub)).step()).num_blocks_in_use == 0
            assert time.monotonic() - started < 1.0


async def test_b087_cancelled_streams_leave_no_session_behind() -> None:
    with ExecutorProcess() as executor:
        async with stub_of(executor.target) as stub:
            for _ in range(100):
                call = stub.RunPlans()
                await call.write(await opening(stub))
                assert (await call.read()).WhichOneof("message") == "opened"
                call.cancel()
            assert (await (await Stream.open(stub)).step()).step_id == 1
            assert "Traceback" not in executor.log()


async def test_b077_health_tells_the_truth_about_a_backend_that_keeps_failing() -> None:
    with ExecutorProcess("--fake-crash-token", "66") as executor:
        assert await health_of(executor.target, READINESS) == SERVING
        async with stub_of(executor.target) as stub:
            stream = await Stream.open(stub)
            for slot in range(3):
                result = await stream.step(**prompt_rows({slot: [66]}, blocks={slot: [slot]}))
                assert result.row_errors[0].error.code == "internal"
            await wait_until_health(executor.target, NOT_SERVING)
            assert not (await stream.step(**prompt_rows({3: [5]}, blocks={3: [3]}))).row_errors
            await wait_until_health(executor.target, SERVING)


async def test_b077_an_unhealthy_executor_that_nobody_uses_tries_its_device_and_says_that_it_works() -> None:
    """Schedulers leave an unhealthy executor, so no step of theirs would ever show that it works again."""
    with ExecutorProcess("--fake-crash-token", "66") as executor:
        async with stub_of(executor.target) as stub:
            stream = await Stream.open(stub)
            for slot in range(3):
                await stream.step(**prompt_rows({slot: [66]}, blocks={slot: [slot]}))
            await wait_until_health(executor.target, NOT_SERVING)
            stream.call.cancel()
            await wait_until_health(executor.target, SERVING)
            result = await (await Stream.open(stub)).step(**prompt_rows(PROMPT, blocks=BLOCKS))
            assert (result.num_blocks_in_use, len(result.row_errors)) == (4, 0)


async def test_health_of_an_unknown_service_is_not_found() -> None:
    with ExecutorProcess() as executor:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await health_of(executor.target, "nobody")
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_port_in_use_is_said_and_ends_the_process_with_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "executor_svc", "--backend", "fake", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "cannot be bound" in done.stderr
    assert done.stdout == ""


def test_the_fake_executor_starts_where_torch_numba_and_tokenizers_cannot_be_imported() -> None:
    script = (
        "import sys\n"
        "for name in ('torch', 'numba', 'cupy', 'tokenizers', 'gguf'): sys.modules[name] = None\n"
        "from executor_svc.__main__ import make_backend\n"
        "from executor_svc.config import ExecutorSettings\n"
        "print(make_backend(ExecutorSettings(backend='fake')).model.vocab_size)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 256
