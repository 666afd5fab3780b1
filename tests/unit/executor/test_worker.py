"""The worker thread: order, failures that stay with their step, sessions that end while plans are queued."""

import asyncio
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from drumline.errors import DrumlineError, PlanRejected
from executor_svc import worker as worker_module
from executor_svc.backends.fake import FakeBackend, FakeOptions
from executor_svc.plan import Batch, Sampled, StepResult
from executor_svc.service import slot_limits
from executor_svc.wire import plan_of
from executor_svc.worker import FAILURES_UNTIL_UNHEALTHY, Job, Work, Worker
from tests.support.executor_process import plan, prompt_rows


class Fragile(FakeBackend):
    """A fake backend that fails on demand: `fault` is raised by the next forwards; `gate` holds a step open."""

    fault: BaseException | None = None

    def __init__(self) -> None:
        super().__init__(FakeOptions(max_model_len=64, max_num_seqs=4, num_blocks=16))
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.closed = self.resets = 0

    def forward(self, batch: Batch) -> Sampled:
        self.entered.set()
        assert self.gate.wait(10)
        if self.fault:
            raise self.fault
        return super().forward(batch)

    def reset(self) -> None:
        self.resets += 1
        super().reset()

    def close(self) -> None:
        self.closed += 1


class Bench:
    def __init__(self) -> None:
        self.backend = Fragile()
        self.health: list[bool] = []
        self.worker = Worker(self.backend, on_health=self.health.append)
        self.outcomes: queue.Queue[StepResult | DrumlineError] = queue.Queue()
        self.work = self.new_work()

    def new_work(self) -> Work:
        return Work(slot_limits(self.backend.model, self.backend.info), deliver=self.outcomes.put)

    def submit(self, work: Work | None = None, **columns: Any) -> None:
        wired = plan(step_id=1, session_epoch=1, **columns)
        asyncio.run(self.worker.submit(Job(work or self.work, plan_of(wired, max_num_seqs=4))))

    def step(self, **columns: Any) -> StepResult | DrumlineError:
        self.submit(**columns)
        return self.outcomes.get(timeout=10)


@pytest.fixture
def bench() -> Iterator[Bench]:
    it = Bench()
    it.worker.start()
    yield it
    it.backend.gate.set()
    it.worker.stop(timeout_s=5)
    assert it.backend.closed == 1


def one(slot: int) -> dict[str, Any]:
    return prompt_rows({slot: [5, 6]}, blocks={slot: [slot]}, max_tokens=4)


def test_b077_a_failing_backend_fails_its_rows_and_turns_unhealthy_only_when_it_goes_on(bench: Bench) -> None:
    bench.backend.fault = RuntimeError("at /some/path 0x7f")
    for slot in range(FAILURES_UNTIL_UNHEALTHY):
        assert bench.health == []
        result = bench.step(**one(slot))
        assert [(row, code) for row, code, _ in result.row_errors] == [(0, "internal")]
        assert "/some/path" not in result.row_errors[0][2]
        assert result.num_blocks_in_use == 0
    assert bench.health == [False]
    bench.backend.fault = None
    assert bench.step(**one(3)).num_emitted.tolist() == [1]
    assert bench.health == [False, True]


def test_b077_an_unhealthy_device_is_tried_only_when_no_session_needs_its_cache(bench: Bench, monkeypatch) -> None:
    monkeypatch.setattr(worker_module, "CANARY_INTERVAL_S", 0.02)
    bench.backend.fault = RuntimeError()
    for slot in range(FAILURES_UNTIL_UNHEALTHY):
        bench.step(**one(slot))
    bench.backend.fault = None
    time.sleep(0.2)
    assert bench.health == [False], "the session that is open would lose its cache"
    bench.backend.fault = RuntimeError()
    bench.work.close()
    time.sleep(0.2)
    assert bench.health == [False], "a device that still fails is still unhealthy"
    bench.backend.fault = None
    deadline = time.monotonic() + 5
    while bench.health != [False, True]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    resets = bench.backend.resets
    bench.work = bench.new_work()
    assert bench.step(**one(0)).num_emitted.tolist() == [1]
    assert bench.backend.resets == resets + 1, "a session never finds what the canary wrote"


def test_rows_of_a_failed_step_are_skipped_afterwards_and_others_go_on(bench: Bench) -> None:
    bench.step(**one(0))
    bench.backend.fault = MemoryError()
    bench.step(**one(1))
    bench.backend.fault = None
    later = bench.step(slot=[1, 0], row_kind=[3, 3], num_tokens=[1, 1], start=[0, 0])
    assert later.skipped == [0]
    assert later.num_emitted.tolist() == [0, 1]


def test_a_backend_that_answers_for_other_rows_is_a_failed_step(bench: Bench) -> None:
    bench.backend.forward = lambda batch: Sampled(token_ids=np.zeros(3, np.int32))
    assert bench.step(**one(0)).row_errors[0][1] == "internal"


def test_a_token_outside_the_vocabulary_fails_its_row(bench: Bench) -> None:
    bench.backend.forward = lambda batch: Sampled(token_ids=np.array([10**6], np.int32))
    assert bench.step(**one(0)).row_errors[0][1] == "internal"


def test_a_rejected_plan_is_delivered_as_the_sessions_error(bench: Bench) -> None:
    assert isinstance(bench.step(repeat_rows=True), PlanRejected)
    assert bench.step().step_id == 1


def test_queued_plans_of_a_closed_session_are_dropped_and_the_cache_is_reset_for_the_next(bench: Bench) -> None:
    bench.backend.gate.clear()
    for slot in range(3):
        bench.submit(**one(slot))
    assert bench.backend.entered.wait(10)
    bench.work.close()
    following = bench.new_work()
    bench.submit(following, **one(0))
    bench.backend.gate.set()
    assert bench.outcomes.get(timeout=10).num_emitted.tolist() == [1]
    assert bench.outcomes.empty()
    assert bench.backend.resets == 2
    assert bench.backend.steps <= 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_says_so() -> None:
    bench = Bench()
    bench.worker.start()
    bench.backend.fault = SystemExit()
    bench.submit(**one(0))
    bench.worker._thread.join(5)
    assert bench.worker.dead
    assert bench.health == [False]
    bench.worker.stop(timeout_s=1)
