"""What the scheduler says about itself: the exposition, status, step accounts, the throughput line."""

import asyncio
import dataclasses
import re

from prometheus_client.parser import text_string_to_metric_families

from scheduler_svc.accounts import StepAccounts
from scheduler_svc.metrics import ThroughputLine
from scheduler_svc.view import View
from scheduler_svc.wire import StepTimes
from tests.support.raw_gateway import RawGateway, pb, sequence
from tests.support.scheduler_house import address_of, house, idle
from tests.support.scripted_executor import ScriptedExecutor


async def _get(port: int, path: str) -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return head.splitlines()[0], body


async def _scrape(port: int) -> dict[str, float]:
    status, body = await _get(port, "/metrics")
    assert status.endswith("200 OK")
    return {sample.name: sample.value for family in text_string_to_metric_families(body) for sample in family.samples}


async def test_exposition_has_the_names_and_counters_never_fall() -> None:
    async with ScriptedExecutor() as executor, house(executor, metrics_port=0) as process:
        before = await _scrape(process.metrics_port)
        assert before["drumline:num_requests_running"] == before["drumline:generation_tokens_total"] == 0
        async with RawGateway(address_of(process)) as gateway:
            prompt = list(range(40))
            for _ in range(2):
                await gateway.done(*await gateway.submit(sequence(prompt, max_tokens=6)))
        after = await _scrape(process.metrics_port)
        assert after["drumline:prompt_tokens_total"] == 80
        assert after["drumline:generation_tokens_total"] == 12
        assert after["drumline:prefix_cache_hits_total"] == 32
        assert after["drumline:prefix_cache_queries_total"] >= 80
        assert after["drumline:steps_total"] >= 12
        assert after["drumline:sequences_admitted_total"] == 2
        assert all(after[name] >= value for name, value in before.items() if name.endswith("_total"))
        await executor.die()
        assert (await _scrape(process.metrics_port))["drumline:steps_total"] >= after["drumline:steps_total"]
        assert (await _get(process.metrics_port, "/etc"))[0].endswith("404 Not Found")


async def test_half_a_scrape_does_no_harm() -> None:
    async with ScriptedExecutor() as executor, house(executor, metrics_port=0) as process:
        _, writer = await asyncio.open_connection("127.0.0.1", process.metrics_port)
        writer.write(b"GET /metr")
        writer.close()
        assert (await _scrape(process.metrics_port))["drumline:num_executors_ready"] == 1


async def test_status_tells_rows_blocks_and_the_grant() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        fresh = await gateway.stub.GetStatus(pb.GetStatusRequest())
        assert not fresh.executors[0].HasField("idle_fraction")
        executor.delay_s = 0.01
        (handle,) = await gateway.submit(sequence([1] * 20, max_tokens=60))
        await gateway.until(lambda: len(gateway.tokens[handle]) > 5)
        status = await gateway.stub.GetStatus(pb.GetStatusRequest())
        (one,) = status.executors
        assert (one.state, one.num_resident, one.num_scheduled, one.num_blocks) == ("ready", 1, 1, 64)
        assert one.num_blocks_used >= 2
        assert one.ragged_granted
        assert one.ragged_reason == "rows are independent"
        assert 0 <= one.idle_fraction <= 1
        await gateway.done(handle)
        await idle(process)


def test_step_is_split_into_queue_wire_and_device() -> None:
    accounts = StepAccounts()
    accounts.submitted(1000)
    accounts.answered(2000, sent_ns=1000, times=StepTimes(queue_ns=100, device_ns=600, idle_ns=0))
    assert (accounts.queue_ns, accounts.device_ns, accounts.wire_ns, accounts.num_steps) == (100, 600, 300, 1)


def test_idle_counts_only_while_something_could_run() -> None:
    accounts = StepAccounts()
    assert accounts.idle_fraction() is None
    accounts.submitted(1000)
    # the executor had nothing to do for an hour before this first plan: not idle
    accounts.answered(2000, sent_ns=1000, times=StepTimes(queue_ns=0, device_ns=900, idle_ns=3_600_000_000_000))
    assert accounts.idle_fraction() == 0
    accounts.submitted(2100)
    accounts.answered(3000, sent_ns=2100, times=StepTimes(queue_ns=0, device_ns=800, idle_ns=200))
    assert accounts.idle_fraction() == 200 / 2000
    accounts.workless()
    accounts.submitted(1_000_000)
    accounts.answered(1_001_000, sent_ns=1_000_000, times=StepTimes(queue_ns=0, device_ns=900, idle_ns=997_000))
    assert accounts.idle_fraction() == 200 / 3000


def _view(**changes) -> View:
    zero = {field.name: 0 for field in dataclasses.fields(View)} | {"draining": False, "executors": ()}
    return View(**(zero | changes))


def test_throughput_line_has_the_format_that_scrapers_match() -> None:
    line = ThroughputLine(_view())
    text = line.next(
        _view(num_prompt_tokens=100, num_generated_tokens=517, prefix_queries=1000, prefix_hits=123, num_resident=5, num_waiting=2),
        seconds=5.0,
    )
    assert text == "Throughput (T/s) 123.4, Prefix cache hitrate 12.3%, 5 running, 2 waiting"
    assert re.search(r"Throughput \(T/s\) ([\d.]+)", text)


def test_throughput_line_is_silent_when_nothing_came_and_says_na_for_what_is_absent() -> None:
    line = ThroughputLine(_view(num_generated_tokens=10))
    assert line.next(_view(num_generated_tokens=10), seconds=5.0) is None
    only_decode = line.next(_view(num_generated_tokens=20), seconds=5.0)
    assert only_decode == "Throughput (T/s) 2.0, Prefix cache hitrate NA (no prompt looked up), 0 running, 0 waiting"
    only_arrival = line.next(_view(num_generated_tokens=20, num_admitted=1, num_waiting=1), seconds=5.0)
    assert only_arrival is not None
    assert only_arrival.startswith("Throughput (T/s) NA (no step finished), ")


async def test_throughput_log_is_written(caplog) -> None:
    caplog.set_level("INFO")
    async with (
        ScriptedExecutor() as executor,
        house(executor, throughput_log=True, throughput_log_interval_s=0.1) as process,
        RawGateway(address_of(process)) as gateway,
    ):
        executor.delay_s = 0.02
        await gateway.done(*await gateway.submit(sequence([1], max_tokens=20)))
        lines = [record.message for record in caplog.records if record.message.startswith("Throughput")]
        assert any(re.search(r"^Throughput \(T/s\) [1-9][\d.]*, .* 1 running, 0 waiting$", line) for line in lines), lines
        num = len(lines)
        await asyncio.sleep(0.4)
        lines = [record.message for record in caplog.records if record.message.startswith("Throughput")]
        assert len(lines) <= num + 1
