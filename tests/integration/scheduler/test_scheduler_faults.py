"""Executors that die, freeze, lie, drain or restart: no token lost, none doubled, nobody waits for ever."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import grpc
import pytest

from drumline.executor.v1 import executor_pb2 as pb
from drumline.rpc import new_server
from tests.support.raw_gateway import RawGateway, sequence
from tests.support.scheduler_house import address_of, house, idle, until
from tests.support.scripted_executor import ScriptedExecutor
from tests.support.scripted_tokens import expected_tokens


async def _run_and_check(gateway: RawGateway, disturb, *, num: int = 6, max_tokens: int = 40) -> None:
    """Starts sequences, disturbs them in mid-stream, and demands the undisturbed text."""
    handles = await gateway.submit(*[sequence([i, i + 1], max_tokens=max_tokens, seed=i + 1) for i in range(num)])
    await gateway.until(lambda: all(len(gateway.tokens[handle]) > 4 for handle in handles))
    await disturb()
    await gateway.done(*handles, timeout_s=20)
    for index, handle in enumerate(handles):
        assert gateway.tokens[handle] == expected_tokens([index, index + 1], index + 1, max_tokens)
    assert not gateway.errors


async def test_executor_that_dies_has_its_rows_moved() -> None:
    """B092: max_tokens counts over the whole life of the sequence."""
    async with ScriptedExecutor() as dying, ScriptedExecutor() as other, house(dying, other) as process:
        dying.delay_s = other.delay_s = 0.005
        async with RawGateway(address_of(process)) as gateway:
            await _run_and_check(gateway, dying.die)
            assert other.plans
            assert process.engine.num_lost == 1
        await idle(process)


async def test_only_executor_restarts_and_its_rows_go_on() -> None:
    async with ScriptedExecutor() as first, house(first) as process, RawGateway(address_of(process)) as gateway:
        first.delay_s = 0.005
        port = int(first.address.rpartition(":")[2])
        again = ScriptedExecutor(port=port)

        async def restart() -> None:
            await first.die()
            await until(lambda: not process.engine.links)
            admission = await gateway.refused(sequence([1]))
            assert admission.refused.code == "unavailable"
            assert "no_executor" in admission.refused.message
            await again.__aenter__()

        await _run_and_check(gateway, restart)
        await again.die()


async def test_stream_that_ends_is_opened_again_with_a_higher_epoch() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        executor.delay_s = 0.005

        async def cut() -> None:
            executor.cut_stream()

        await _run_and_check(gateway, cut)
        assert len(executor.epochs) == 2
        assert executor.epochs[1] > executor.epochs[0]
        await idle(process)


async def test_b076_frozen_executor_is_lost_and_its_late_results_are_dropped() -> None:
    async with ScriptedExecutor() as frozen, ScriptedExecutor() as other, house(frozen, other) as process:
        frozen.delay_s = other.delay_s = 0.005
        async with RawGateway(address_of(process)) as gateway:
            since = 0.0

            async def freeze() -> None:
                nonlocal since
                frozen.freeze()
                since = time.monotonic()
                await until(lambda: len(process.engine.links) == 1)
                since = time.monotonic() - since

            await _run_and_check(gateway, freeze)
            assert since < 1.0, "stall 0.2 s + probe 0.3 s"
            frozen.thaw()
            await until(lambda: len(process.engine.links) == 2)
        await idle(process)


async def test_idle_executor_that_freezes_is_noticed_too() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process:
        executor.freeze()
        await until(lambda: not process.engine.links, timeout_s=2)
        assert not process.engine.is_ready()


async def test_slow_executor_is_not_lost_while_it_answers_probes() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        executor.delay_s = 0.8
        (handle,) = await gateway.submit(sequence([1], max_tokens=2))
        await gateway.done(handle)
        assert process.engine.num_lost == 0
        assert executor.num_probes > 2


async def test_b077_stuck_step_is_lost_by_name() -> None:
    """The executor answers probes, but its step never ends."""
    async with (
        ScriptedExecutor() as stuck,
        house(stuck, step_timeout_s=0.6) as process,
        RawGateway(address_of(process)) as gateway,
    ):
        stuck.gate.clear()
        await gateway.submit(sequence([1], max_tokens=2))
        await until(lambda: process.engine.num_lost == 1)
        assert process.recorder.lost_reasons() == ["no step finished for 0.6 s"]
        stuck.gate.set()


async def test_b077_executor_that_says_its_device_fails_is_left_and_comes_back_when_it_is_well() -> None:
    """Its steps fail fast, so no probe would ever notice, and it would take row after row."""
    async with ScriptedExecutor() as sick, ScriptedExecutor() as other, house(sick, other) as process:
        sick.delay_s = other.delay_s = 0.005
        async with RawGateway(address_of(process)) as gateway:

            async def sicken() -> None:
                await sick.feel(well=False)
                await until(lambda: len(process.engine.links) == 1)

            await _run_and_check(gateway, sicken)
            assert process.recorder.lost_reasons() == ["the executor says that its device fails"]
            client = process.discovery.clients[sick.address]
            await until(lambda: client.reason == "the executor says that its device fails")
            await asyncio.sleep(0.5)
            assert len(sick.epochs) == 1, "not opened again while it is unwell"
            await sick.feel(well=True)
            await until(lambda: len(process.engine.links) == 2)
        await idle(process)


async def test_executor_that_sends_nonsense_costs_its_own_session_only() -> None:
    """What cannot be decoded reaches the client as None, which nobody foresees: it must not end the scheduler."""
    async with (
        _nonsense() as address,
        ScriptedExecutor() as honest,
        house(honest, executor=(address, honest.address), num_ready=1) as process,
        RawGateway(address_of(process)) as gateway,
    ):
        # the client's own `reason` says so only until it dials again
        await until(lambda: any("NoneType" in reason for reason in process.recorder.lost_reasons()))
        await _run_and_check(gateway, lambda: asyncio.sleep(0))
        assert not process.failed.done()


@contextlib.asynccontextmanager
async def _nonsense() -> AsyncIterator[str]:
    """An executor that shakes hands and then writes bytes that are no message."""
    caps = ScriptedExecutor().caps

    async def capabilities(request, context) -> bytes:
        return caps.SerializeToString()

    async def model(request, context) -> bytes:
        return pb.GetModelResponse(model_digest=caps.model_digest, vocab_size=9).SerializeToString()

    async def run_plans(requests, context) -> None:
        opening = pb.RunPlansRequest.FromString(await context.read()).open
        await context.write(pb.RunPlansResponse(opened=pb.SessionOpened(session_epoch=opening.session_epoch)).SerializeToString())
        await context.write(b"\xff" * 20)
        await asyncio.sleep(5)

    server = new_server()
    handlers = {
        "GetCapabilities": grpc.unary_unary_rpc_method_handler(capabilities),
        "GetModel": grpc.unary_unary_rpc_method_handler(model),
        "RunPlans": grpc.stream_stream_rpc_method_handler(run_plans),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("drumline.executor.v1.Executor", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def _longer(result) -> None:
    if result.length:
        result.length[0] += 1


def _more_tokens(result) -> None:
    result.token_ids.append(1)


def _other_row(result) -> None:
    result.finished_row.append(99)
    result.finish_reason.append(1)


def _other_step(result) -> None:
    result.step_id += 1


@pytest.mark.parametrize("lie", [_longer, _more_tokens, _other_row, _other_step])
async def test_result_that_contradicts_its_plan_costs_the_liar_only(lie) -> None:
    async with ScriptedExecutor() as liar, ScriptedExecutor() as honest, house(liar, honest) as process:
        liar.delay_s = honest.delay_s = 0.002
        async with RawGateway(address_of(process)) as gateway:

            async def tamper() -> None:
                liar.tamper = lie
                await until(lambda: process.engine.num_lost == 1)
                liar.tamper = lambda result: None

            await _run_and_check(gateway, tamper)
        assert len(process.recorder.dumps) == 1
        assert process.recorder.dumps[0].startswith("result_mismatch")
        await idle(process)


async def test_draining_executor_keeps_its_rows_and_gets_no_new_ones() -> None:
    async with ScriptedExecutor() as leaving, ScriptedExecutor() as staying, house(leaving, staying) as process:
        leaving.delay_s = staying.delay_s = 0.005
        async with RawGateway(address_of(process)) as gateway:
            handles = await gateway.submit(*[sequence([i], max_tokens=30, seed=i + 1) for i in range(4)])
            await until(lambda: leaving.residents)
            leaving.drain()
            await until(lambda: process.recorder.kinds("DRAIN"))
            num_entered = sum(len(plan.new_sequences) for plan in leaving.plans)
            handles += await gateway.submit(*[sequence([i], max_tokens=30, seed=i + 1) for i in range(4, 8)])
            await gateway.done(*handles)
            assert all(gateway.tokens[handle] == expected_tokens([i], i + 1, 30) for i, handle in enumerate(handles))
            assert sum(len(plan.new_sequences) for plan in leaving.plans) == num_entered
            await until(lambda: process.engine.num_lost == 1)
        assert process.recorder.kinds("DRAIN", "LOST") == ["DRAIN", "LOST"]


async def test_defect_dumps_the_ring_and_ends_everything_by_name() -> None:
    """No silent hang: gateways get an error, the process learns why it must exit."""
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        executor.delay_s = 0.01
        (handle,) = await gateway.submit(sequence([1], max_tokens=200))
        await gateway.until(lambda: len(gateway.tokens[handle]) > 3)

        def broken(executor_id: int, result: object) -> None:
            raise KeyError("a defect of ours")

        process.core.update = broken
        error = await asyncio.wait_for(process.failed, 5)
        assert isinstance(error, KeyError)
        assert process.recorder.dumps == ["engine: KeyError: 'a defect of ours'"]
        await gateway.done(handle)
        assert gateway.errors[handle][0] == "internal"
        assert "defect" not in gateway.errors[handle][1], "what failed is for our logs"
