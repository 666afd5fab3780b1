"""The grant over real calls: declared, decided once, told, carried, shown, and too late when late. Rows B4, B5, B7, B8, F3."""

import urllib.request
from asyncio import to_thread

import pytest

from drumline.errors import InvalidRequest
from drumline.executor.v1.executor_pb2 import RaggedDeclaration
from drumline.plan.v1 import plan_pb2
from drumline.scheduler.v1 import scheduler_pb2 as pb
from scheduler_svc.config import SchedulerSettings
from scheduler_svc.core.grant import grant_for
from scheduler_svc.core.types import Limits
from scheduler_svc.grants import announce_advance
from scheduler_svc.process import SchedulerProcess
from tests.support.core_world import executor_info
from tests.support.raw_gateway import RawGateway, sequence
from tests.support.scheduler_house import MemoryRecorder, address_of, house, idle, until
from tests.support.scripted_executor import ScriptedExecutor
from tests.support.scripted_tokens import expected_tokens

DENSE = [plan_pb2.LAYOUT_PAGED, plan_pb2.LAYOUT_ALIGNED, plan_pb2.LAYOUT_STRIPPED]


def declare(executor, *, granted, reason, layouts=DENSE):
    executor.caps.ragged.CopyFrom(RaggedDeclaration(granted=granted, reason=reason))
    del executor.caps.layouts[:]
    executor.caps.layouts.extend(layouts)


async def run_two(gateway):
    """Two sequences of different lengths, to their ends."""
    handles = await gateway.submit(sequence([7] * 5, max_tokens=9, seed=1), sequence([8] * 30, max_tokens=9, seed=2))
    await gateway.done(*handles)
    assert gateway.tokens[handles[0]] == expected_tokens([7] * 5, 1, 9)
    assert gateway.tokens[handles[1]] == expected_tokens([8] * 30, 2, 9)


async def test_b4_a_declared_grant_is_told_carried_and_shown(caplog) -> None:
    caplog.set_level("DEBUG", logger="scheduler_svc")
    async with ScriptedExecutor() as executor:
        declare(executor, granted=True, reason="every slot keeps its own length")
        async with house(executor, admission="ragged", layout="stripped") as process, RawGateway(address_of(process)) as gateway:
            await run_two(gateway)
            (opening,) = executor.openings
            assert (opening.ragged_granted, opening.ragged_reason) == (True, "every slot keeps its own length")
            assert {plan.grant_id for plan in executor.plans} == {opening.grant_id}
            assert {plan.layout for plan in executor.plans} == {plan_pb2.LAYOUT_STRIPPED}
            assert any(len(plan.slot) == 2 or plan.repeat_rows for plan in executor.plans), "rows of two lengths shared a step"
            assert executor.most_in_flight == 1
            status = await gateway.stub.GetStatus(pb.GetStatusRequest())
            one = status.executors[0]
            assert (status.admission, one.layout, one.grant_id) == ("ragged", "stripped", opening.grant_id)
            assert (one.ragged_granted, one.ragged_reason) == (True, "every slot keeps its own length")
            await idle(process)
    said = [record for record in caplog.records if "Ragged batch admission is ON" in record.message]
    assert [record.levelname for record in said] == ["INFO"]
    assert "every slot keeps its own length" in said[0].message


async def test_b7_a_refusal_says_which_layer_said_no_and_why(caplog) -> None:
    caplog.set_level("DEBUG", logger="scheduler_svc")
    async with ScriptedExecutor() as executor:
        declare(executor, granted=False, reason="slot 3 is rolling")
        async with house(executor, admission="ragged", layout="aligned") as process, RawGateway(address_of(process)) as gateway:
            await run_two(gateway)
            assert not executor.openings[0].ragged_granted
            assert executor.openings[0].ragged_reason == "slot 3 is rolling"
            assert {plan.advance for plan in executor.plans} == {plan_pb2.ADVANCE_COHORT}
            (one,) = (await gateway.stub.GetStatus(pb.GetStatusRequest())).executors
            assert (one.ragged_granted, one.ragged_reason) == (False, "slot 3 is rolling")
            await idle(process)
    by_level = {record.levelname: record.message for record in caplog.records if "slot 3 is rolling" in record.message}
    assert set(by_level) >= {"DEBUG", "WARNING"}
    assert "cannot honour it" in by_level["WARNING"]


async def test_b14_the_bucketed_policy_refuses_what_was_declared_and_says_so_itself(caplog) -> None:
    caplog.set_level("DEBUG", logger="scheduler_svc")
    async with ScriptedExecutor() as executor:
        declare(executor, granted=True, reason="every slot keeps its own length")
        async with house(executor, admission="bucketed") as process, RawGateway(address_of(process)) as gateway:
            await run_two(gateway)
            assert not executor.openings[0].ragged_granted
            assert "bucketed" in executor.openings[0].ragged_reason
            await idle(process)
    assert not any("cannot honour it" in record.message for record in caplog.records), "nobody asked for it"


async def test_b8_a_late_grant_is_warned_about_and_changes_nothing(caplog) -> None:
    async with ScriptedExecutor() as executor:
        declare(executor, granted=False, reason="not yet")
        async with house(executor, admission="ragged") as process:
            declare(executor, granted=True, reason="now it can")
            await until(lambda: any("too late" in record.message for record in caplog.records))
            await until(lambda: executor.num_probes >= 4)
            (said,) = [record for record in caplog.records if "too late" in record.message]
            assert said.levelname == "WARNING"
            assert "now it can" in said.message
            assert not process.view().executors[0].ragged_granted
            executor.cut_stream()
            await until(lambda: len(executor.openings) == 2 and process.view().executors[0].ragged_granted)


async def test_an_executor_without_the_layout_is_refused_by_name() -> None:
    async with ScriptedExecutor() as executor, house(executor, num_ready=0, admission="ragged", layout="aligned") as process:
        client = process.discovery.clients
        await until(lambda: any(one.reason for one in client.values()))
        (reason,) = {one.reason for one in client.values()}
        assert reason == "this scheduler runs layout aligned; the executor serves paged"
        assert executor.openings == []


async def test_f3_settings_that_contradict_each_other_stop_the_scheduler_by_name() -> None:
    settings = SchedulerSettings(port=0, admission="ragged", layout="aligned", cadence="every_step")
    with pytest.raises(InvalidRequest, match=r"layout `aligned` .* cadence `every_step`"):
        SchedulerProcess(settings, make_recorder=MemoryRecorder)


async def test_a1_metrics_show_the_grant_and_how_cohorts_shatter() -> None:
    async with ScriptedExecutor() as executor:
        declare(executor, granted=False, reason="no")
        async with house(executor, admission="ragged", metrics_port=0) as process, RawGateway(address_of(process)) as gateway:
            await run_two(gateway)
            text = await to_thread(_read, f"http://127.0.0.1:{process.metrics_port}/metrics")
            await idle(process)
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines[f'drumline:ragged_granted{{executor="{executor.address}",layout="paged"}}'] == "0.0"
    offered, chosen = (float(lines[f"drumline:cohort_rows_{name}_total"]) for name in ("offered", "chosen"))
    assert 0 < chosen < offered
    assert float(lines["drumline:cohort_buckets_total"]) > float(lines["drumline:cohort_decisions_total"])


def _read(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


@pytest.mark.parametrize(
    ("advance", "granted", "drafts", "said"),
    [
        ("cohort", True, "fixed", ["INFO"]),
        ("per_sequence", False, "fixed", ["WARNING"]),
        ("per_sequence", True, "fixed", []),
        ("cohort", False, "off", []),
    ],
)
def test_d2_that_rows_move_by_the_slowest_is_said_and_a_warning_where_nobody_asked(advance, granted, drafts, said, caplog) -> None:
    caplog.set_level("DEBUG", logger="scheduler_svc")
    limits = Limits(advance=advance, drafts=drafts)
    info = executor_info(mtp_depth=3, ragged_granted=granted, ragged_reason="told so")
    announce_advance("here:1", info, grant_for(info, limits=limits), limits=limits)
    assert [record.levelname for record in caplog.records] == said
    assert all("here:1" in record.message for record in caplog.records)
