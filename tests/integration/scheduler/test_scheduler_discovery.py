"""Executors by name: addresses that join and leave while requests run; the resolver is the tests' own."""

import asyncio

import pytest

from drumline.errors import InvalidRequest
from scheduler_svc.discovery import Discovery, parse_target, resolve_by_system
from tests.support.raw_gateway import RawGateway, sequence
from tests.support.scheduler_house import address_of, house, until
from tests.support.scripted_executor import ScriptedExecutor
from tests.support.scripted_tokens import expected_tokens


class Clients:
    """What discovery starts, noted; each runs until it is retired."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.retired: list[str] = []

    def start(self, address: str) -> "_Client":
        self.started.append(address)
        return _Client(address, self)


class _Client:
    def __init__(self, address: str, owner: Clients) -> None:
        self.address, self.owner = address, owner
        self.done = asyncio.Event()

    def retire(self) -> None:
        self.owner.retired.append(self.address)
        self.done.set()

    async def run(self) -> None:
        await self.done.wait()


async def test_name_that_gains_an_address_gains_a_channel() -> None:
    addresses = ["10.0.0.1"]

    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("executor", 7101)
        return list(addresses)

    clients = Clients()
    discovery = Discovery(["executor:7101", "10.9.9.9:1"], start=clients.start, interval_s=0.01, resolve=resolve)
    task = asyncio.create_task(discovery.run())
    await until(lambda: sorted(clients.started) == ["10.0.0.1:7101", "10.9.9.9:1"])
    addresses.append("fd00::1")
    await until(lambda: "[fd00::1]:7101" in clients.started)
    addresses.remove("10.0.0.1")
    await until(lambda: clients.retired == ["10.0.0.1:7101"])
    addresses.append("10.0.0.1")
    await until(lambda: clients.started.count("10.0.0.1:7101") == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_address_that_was_superseded_is_dialled_again_once_it_left_its_name_and_came_back() -> None:
    """Another process lives there then: a pod's address is given to the next pod."""
    addresses = ["10.0.0.1"]

    async def resolve(host: str, port: int) -> list[str]:
        del host, port
        return list(addresses)

    clients = Clients()
    discovery = Discovery(["executor:7101"], start=clients.start, interval_s=0.01, resolve=resolve)
    task = asyncio.create_task(discovery.run())
    await until(lambda: clients.started)
    discovery.clients["10.0.0.1:7101"].done.set()
    await asyncio.sleep(0.05)
    assert clients.started == ["10.0.0.1:7101"], "a client that ended by itself is not started again"
    addresses.clear()
    await until(lambda: not discovery.clients)
    addresses.append("10.0.0.1")
    await until(lambda: len(clients.started) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_name_that_cannot_be_resolved_now_keeps_its_addresses() -> None:
    is_broken = False

    async def resolve(host: str, port: int) -> list[str]:
        if is_broken:
            raise OSError("no answer")
        return ["10.0.0.1"]

    clients = Clients()
    discovery = Discovery(["executor:7101"], start=clients.start, interval_s=0.01, resolve=resolve)
    task = asyncio.create_task(discovery.run())
    await until(lambda: clients.started == ["10.0.0.1:7101"])
    is_broken = True
    await asyncio.sleep(0.05)
    assert clients.retired == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_client_that_fails_is_a_defect_and_not_silence() -> None:
    class Broken(_Client):
        async def run(self) -> None:
            raise RuntimeError("boom")

    owner = Clients()
    discovery = Discovery(["10.0.0.1:1"], start=lambda address: Broken(address, owner), interval_s=0.01)
    with pytest.raises(ExceptionGroup):
        await discovery.run()


@pytest.mark.parametrize("text", ["", "host", "host:", ":7", "host:0", "host:65536", "host:x", "host:٣"])
def test_target_that_is_no_host_and_port_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match="must be host:port"):
        parse_target(text)


async def test_system_resolver_prefers_one_family() -> None:
    assert await resolve_by_system("localhost", 80) == ["127.0.0.1"]


async def test_executor_that_joins_under_load_gets_rows() -> None:
    async with ScriptedExecutor(max_num_seqs=4) as first, ScriptedExecutor(max_num_seqs=4) as second:
        known = [first]

        async def resolve(host: str, port: int) -> list[str]:
            # each scripted executor has a port of its own, so each is a name of its own here
            return ["127.0.0.1"] if any(port == int(one.address.rpartition(":")[2]) for one in known) else []

        names = tuple(one.address.replace("127.0.0.1", "executor") for one in (first, second))
        async with (
            house(first, second, executor=names, resolve=resolve, num_ready=1) as process,
            RawGateway(address_of(process)) as gateway,
        ):
            first.delay_s = second.delay_s = 0.01
            handles = await gateway.submit(*[sequence([i, 9], max_tokens=40, seed=i + 1) for i in range(12)])
            known.append(second)
            await until(lambda: second.residents, timeout_s=5)
            await gateway.done(*handles, timeout_s=30)
            for index, handle in enumerate(handles):
                assert gateway.tokens[handle] == expected_tokens([index, 9], index + 1, 40)


async def test_one_process_under_two_addresses_is_linked_once() -> None:
    async with ScriptedExecutor(host="0.0.0.0") as executor:
        port = executor.address.rpartition(":")[2]
        async with house(executor, executor=(f"127.0.0.1:{port}", f"127.0.0.2:{port}"), num_ready=1) as process:
            await until(lambda: len(process.discovery.clients) == 2)
            await until(lambda: any("already linked" in client.reason for client in process.discovery.clients.values()))
            await asyncio.sleep(0.3)
            assert len(process.engine.links) == 1
            assert len(executor.epochs) == 1
            assert not process.failed.done()
