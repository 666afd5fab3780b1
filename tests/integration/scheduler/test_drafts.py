"""Drafts from scheduler to executor and back, over real gRPC: answers do not change, whoever drafts, dies or is preempted."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import httpx
import pytest

from bench.server import free_port
from tests.support.raw_gateway import RawGateway, pb, sequence
from tests.support.service_process import service

EXECUTOR = ("--backend", "fake", "--port", "0", "--fake-eos-chance", "0.01", "--max-num-seqs", "16")
LUCKY = ("--drafter", "mtp", "--fake-draft-luck", "0.8", "--mtp-depth", "4")


@contextlib.asynccontextmanager
async def served(*executors: tuple[str, ...], flags: tuple[str, ...] = ()) -> AsyncIterator[tuple[list, RawGateway, int]]:
    async with contextlib.AsyncExitStack() as stack:
        starts = [stack.enter_async_context(service("executor_svc", *EXECUTOR, *more)) for more in executors]
        running = await asyncio.gather(*starts)
        targets = [word for _, address in running for word in ("--executor", address)]
        metrics = free_port()
        command = ("--port", "0", "--metrics-port", str(metrics), *targets, *flags)
        _, address = await stack.enter_async_context(service("scheduler_svc", *command))
        gateway = await stack.enter_async_context(RawGateway(address))
        async with asyncio.timeout(10):
            while True:
                status = await gateway.stub.GetStatus(pb.GetStatusRequest())
                if sum(one.state == "ready" for one in status.executors) == len(executors):
                    break
                await asyncio.sleep(0.02)
        yield [process for process, _ in running], gateway, metrics


def work(num: int = 12) -> list[pb.SequenceRequest]:
    return [sequence([i + 5] * (3 + 2 * i), max_tokens=60 + i, seed=i + 1, temperature=float(i % 2)) for i in range(num)]


async def answers(gateway: RawGateway) -> list[list[int]]:
    handles = await gateway.submit(*work())
    await gateway.done(*handles, timeout_s=30)
    assert not gateway.errors
    return [gateway.tokens[handle] for handle in handles]


async def counters(port: int) -> dict[str, float]:
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if "spec_decode" in line and not line.startswith("#")]
    return {name.removeprefix("drumline:spec_decode_"): float(value) for name, value in lines if "_created" not in name}


async def without_drafts() -> list[list[int]]:
    async with served(()) as (_, gateway, port):
        found = await answers(gateway)
        assert not await counters(port)  # who drafts nothing has no acceptance, which is not an acceptance of 0
        return found


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return asyncio.run(without_drafts())


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--drafts", "fixed"),
        ("--drafts", "fixed", "--plans-in-flight", "1"),
        ("--drafts", "fixed", "--advance", "cohort"),
    ],
)
async def test_answers_with_drafts_are_those_without(plain, flags) -> None:
    # Where drafts must be worth it steps take a time of their own: on a busy machine those of the fake take as long as it pleases.
    executor = LUCKY if flags else (*LUCKY, "--fake-step-ms", "5")
    async with served(executor, flags=flags) as (_, gateway, port):
        assert await answers(gateway) == plain
        found = {
            name.split("{")[0] + name.partition("position=")[2].strip('"}'): value for name, value in (await counters(port)).items()
        }
    drafted, accepted = found["num_draft_tokens_total"], found["num_accepted_tokens_total"]
    assert 0 < accepted < drafted
    if flags:
        assert 0.4 < accepted / drafted < 0.9
    by_place = [found[f"num_accepted_tokens_per_pos_total{place}"] for place in range(4)]
    assert sum(by_place) == accepted
    assert by_place == sorted(by_place, reverse=True)


async def test_d2_rows_of_an_executor_that_refuses_more_move_by_the_slowest(plain) -> None:
    """Nobody set it: the grant decides. Tokens per step fall, answers do not change."""
    rates = {}
    for ragged in ("auto", "refuse"):
        async with served((*LUCKY, "--ragged", ragged), flags=("--drafts", "fixed")) as (_, gateway, port):
            assert await answers(gateway) == plain
            found = {name.split("{")[0]: value for name, value in (await counters(port)).items()}
            rates[ragged] = found["num_decode_tokens_total"] / found["num_decode_rows_total"]
    assert 1 < rates["refuse"] < rates["auto"]


async def test_b075_drafts_can_be_switched_off_and_few_blocks_only_cost_drafts(plain) -> None:
    async with served(LUCKY, flags=("--drafts", "off")) as (_, gateway, port):
        assert await answers(gateway) == plain
        assert not await counters(port)
    async with served((*LUCKY, "--num-blocks", "24"), flags=("--drafts", "fixed")) as (_, gateway, port):
        assert await answers(gateway) == plain  # most are preempted, some more than once


async def test_a_sequence_goes_on_where_nobody_drafts_and_back(plain) -> None:
    """Migration: one executor drafts, the other does not; the first is killed in mid-stream."""
    slow = ("--fake-step-ms", "5")
    async with served((*LUCKY, *slow), slow, flags=("--drafts", "fixed")) as (processes, gateway, _):
        handles = await gateway.submit(*work())
        await gateway.until(lambda: sum(len(gateway.tokens[handle]) for handle in handles) > 90)
        processes[0].send_signal(signal.SIGKILL)
        await gateway.done(*handles, timeout_s=30)
        assert not gateway.errors
        assert [gateway.tokens[handle] for handle in handles] == plain
