"""`bench fleet`: what counts as a gap, as idle, as within the goals; and how the largest fleet is found."""

import asyncio
import time
from array import array
from typing import Any

import pytest

from bench.echo import EchoExecutor, Seen
from bench.echo_process import summary_of
from bench.fleet import holds, limit_of, scheduler_ms, search, table_of
from bench.fleet_run import Fleet
from bench.processors import Usage, Used
from drumline.executor.v1.executor_pb2 import OpenSession, RunPlansRequest, RunPlansResponse
from drumline.plan.v1.plan_pb2 import StepPlan

STEP_NS = 20_000_000


def seen(*gaps_ms: float) -> Seen:
    return Seen(array("q", [int(1e6 * gap) for gap in gaps_ms]), array("q", [0] * len(gaps_ms)), len(gaps_ms))


def fleet(
    executors: int = 2, *, idle: float = 0.0, gap: float = 0.0, loop: float = 0.5, busy: float = 0.6, others: float = 0.0
) -> Fleet:
    told = dict.fromkeys(("gap_p50_ms", "late_p50_ms", "late_p99_ms"), 0.0)
    told |= {"num_steps": 1000, "idle_share": idle, "worst_idle_share": idle, "gap_p99_ms": gap}
    usage = {"scheduler": Usage(loop, loop, 0.0), "executors": Usage(0.2, 0.2, 0.0), "reader": Usage(0.1, 0.1, 0.0)}
    return Fleet(executors, told, Used(10.0, usage, busy=busy, others=others), num_read=90, num_due=100)


def test_idle_is_the_gaps_over_gaps_and_steps() -> None:
    told = summary_of([seen(0, 0, 0, 20), seen(0, 0, 0, 0)], step_ns=STEP_NS)
    assert told["idle_share"] == pytest.approx(20 / (20 + 8 * 20))
    assert told["worst_idle_share"] == pytest.approx(20 / (20 + 4 * 20))
    assert told["num_steps"] == 8
    assert told["gap_p50_ms"] == 0
    assert told["gap_max_ms"] == pytest.approx(20)


def test_an_executor_that_ran_no_step_was_idle() -> None:
    assert summary_of([seen(), seen(0)], step_ns=STEP_NS)["worst_idle_share"] == 1.0


class Wire:
    """A scheduler's end of RunPlans: keeps `in_flight` plans there and sends the next `late_s` after a result."""

    def __init__(self, *, in_flight: int, late_s: float) -> None:
        self._late_s = late_s
        self._inbox: asyncio.Queue[Any] = asyncio.Queue(maxsize=64)
        self._inbox.put_nowait(RunPlansRequest(open=OpenSession(session_epoch=1)))
        self._next = 1
        self.num_results = 0
        for _ in range(in_flight):
            self._send()

    def _send(self) -> None:
        self._inbox.put_nowait(RunPlansRequest(plan=StepPlan(step_id=self._next)))
        self._next += 1

    async def read(self) -> Any:
        return await self._inbox.get()

    async def write(self, message: RunPlansResponse) -> None:
        if message.HasField("result"):
            self.num_results += 1
            asyncio.get_running_loop().call_later(self._late_s, self._send)


@pytest.mark.parametrize(("in_flight", "late_ms", "least_ms"), [(1, 30, 30), (2, 0, 0)])
async def test_a_gap_is_the_time_from_a_steps_end_to_the_next_plan_in_hand(in_flight: int, late_ms: float, least_ms: float) -> None:
    executor = EchoExecutor(name="e", rows=1, max_model_len=64, step_ns=50_000_000)
    wire = Wire(in_flight=in_flight, late_s=late_ms / 1e3)
    executor.begin()
    began_ns = time.monotonic_ns()
    running = asyncio.create_task(executor.RunPlans(None, wire))
    while wire.num_results < 5:
        await asyncio.sleep(0.005)
    told = executor.end()
    elapsed_ns = time.monotonic_ns() - began_ns
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert told.gaps[0] == 0  # before the first step there was nothing to wait behind
    assert all(gap >= 1e6 * least_ms for gap in told.gaps[1:5])
    assert sum(told.gaps[1:5]) <= elapsed_ns - 5 * 50_000_000 + 50_000_000
    if not least_ms:
        assert min(told.gaps[1:5]) == 0


def test_both_goals_must_hold() -> None:
    assert holds(fleet(idle=0.019, gap=1.9))
    assert not holds(fleet(idle=0.02))
    assert not holds(fleet(gap=2.0))


def test_what_was_full_is_named() -> None:
    assert limit_of(fleet()) == "nothing"
    assert limit_of(fleet(loop=0.97)) == "scheduler"
    assert limit_of(fleet(loop=0.97, busy=0.99)) == "scheduler, machine"
    assert limit_of(fleet(busy=0.99, others=0.72)) == "machine (others took 72% of it)"


def test_the_scheduler_s_time_is_told_by_step() -> None:
    assert scheduler_ms(fleet(loop=0.5)) == pytest.approx(5.0)
    assert table_of([fleet()], title="t").row_count == 1


@pytest.mark.parametrize("true_limit", [0, 1, 5, 8, 13, 31, 32, 47, 63, 64, 200])
def test_the_search_ends_at_the_largest_that_holds(true_limit: int) -> None:
    tried = []

    def does_hold(executors: int) -> bool:
        tried.append(executors)
        return executors <= true_limit

    found = search(does_hold, asked=32, asked_holds=true_limit >= 32, most=64)
    assert found <= true_limit
    assert min(true_limit, 64) - found < max(1, found // 8) or found == min(true_limit, 64)
    assert len(tried) == len(set(tried)) <= 6
