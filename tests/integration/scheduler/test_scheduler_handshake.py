"""Who may own an executor and which executors may join: epochs, protocol versions, models; refusals say why."""

import asyncio

import pytest

from tests.support.raw_gateway import RawGateway, sequence
from tests.support.scheduler_house import address_of, house, until
from tests.support.scripted_executor import ScriptedExecutor
from tests.support.scripted_tokens import expected_tokens


async def test_newer_scheduler_takes_an_executor_over_and_the_older_stops_by_name() -> None:
    async with ScriptedExecutor() as executor, house(executor, epoch=1000) as older, RawGateway(address_of(older)) as gateway:
        executor.delay_s = 0.01
        (handle,) = await gateway.submit(sequence([1], max_tokens=200))
        await gateway.until(lambda: len(gateway.tokens[handle]) > 3)
        async with house(executor, epoch=1_000_000) as newer, RawGateway(address_of(newer)) as other:
            error = await asyncio.wait_for(older.failed, 5)
            assert error.code == "stale_epoch"
            assert "newer scheduler" in error.message
            await gateway.done(handle)
            assert gateway.errors[handle][0] == "stale_epoch"
            (again,) = await other.submit(sequence([1], max_tokens=5))
            await other.done(again)
            assert other.tokens[again] == expected_tokens([1], 7, 5)
    assert len(executor.epochs) == 2


@pytest.mark.parametrize("epoch", [1000, 999])
async def test_equal_or_lower_epoch_is_refused(epoch: int) -> None:
    async with ScriptedExecutor() as executor, house(executor, epoch=1000) as owner:
        async with house(executor, epoch=epoch, num_ready=0) as late:
            error = await asyncio.wait_for(late.failed, 5)
            assert error.code == "stale_epoch"
        assert len(owner.engine.links) == 1
        assert not owner.failed.done()


async def test_protocol_mismatch_is_named() -> None:
    async with ScriptedExecutor(protocol=(7, 9)) as executor, house(executor, num_ready=0) as process:
        client = await _client(process, executor)
        await until(lambda: client.reason)
        assert client.reason == "executor speaks protocol 7 to 9, this scheduler 1 to 1"
        assert not process.engine.is_ready()


async def test_executor_of_another_model_is_refused_by_name() -> None:
    async with ScriptedExecutor() as first, ScriptedExecutor(model_digest="e" * 64) as odd:
        async with house(first, executor=(first.address,)) as process:
            async with house(first, odd, executor=(odd.address,), num_ready=1):
                pass  # alone it is fine
            del process
        async with house(first, odd, num_ready=1) as process:
            refused = odd if next(iter(process.engine.links.values())).address == first.address else first
            client = await _client(process, refused)
            await until(lambda: client.reason)
            assert "serves another model" in client.reason or "serves model" in client.reason


async def _client(process, executor: ScriptedExecutor):
    await until(lambda: executor.address in process.discovery.clients)
    return process.discovery.clients[executor.address]
