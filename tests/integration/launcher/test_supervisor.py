"""The supervisor over real processes that stand in for services: order, addresses, restarts, drain, and nothing left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launcher.process import Service
from launcher.supervisor import Backoff, Supervisor
from tests.support.standin_launcher import standin, three

QUICK = {"first_delay_s": 0.01, "max_delay_s": 0.02}


def send(child, number):
    """To a process that is there: pid 0 would be pytest's own group."""
    assert child.pid
    os.kill(child.pid, number)


class Run:
    """One supervisor in this process, driven by a test."""

    def __init__(self, stages: list[list[Service]], *, drain_timeout_s: float = 5.0, max_short_lives: int = 3) -> None:
        self.ready = asyncio.Event()
        self.addresses: dict[str, str] = {}
        self.supervisor = Supervisor(
            stages,
            drain_timeout_s=drain_timeout_s,
            on_ready=self._on_ready,
            new_backoff=lambda: Backoff(max_short_lives=max_short_lives, **QUICK),
        )
        self.task = asyncio.create_task(self.supervisor.run())

    async def _on_ready(self, addresses: dict[str, str]) -> None:
        self.addresses = addresses
        self.ready.set()

    async def until_ready(self) -> list[int]:
        await asyncio.wait_for(self.ready.wait(), 20)
        return [child.pid for child in self.supervisor.children if child.pid]

    async def stop(self) -> int:
        self.supervisor.request_stop()
        return await asyncio.wait_for(self.task, 20)


def events(log: Path, word: str) -> list[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split()[0] for line in lines if line.split()[1].startswith(word)]


async def until(condition: object, timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


def gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


async def test_stages_start_in_order_and_later_ones_know_the_earlier_addresses(tmp_path: Path) -> None:
    run = Run(three(log := tmp_path / "log"))
    pids = await run.until_ready()
    assert len(pids) == 4
    started = events(log, "ready")
    assert set(started[:2]) == {"executor-0", "executor-1"}
    assert started[2:] == ["scheduler", "gateway"]
    lines = log.read_text()
    assert f"ready:{run.addresses['executor-0']},{run.addresses['executor-1']}" in lines
    assert f"ready:{run.addresses['scheduler']}" in lines
    assert await run.stop() == 0
    assert gone(pids)


async def test_r17_gateway_drains_before_scheduler_before_executors(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = Run([[standin("executor", log)], [standin("scheduler", log)], [standin("gateway", log, "--drain-s", "0.4")]])
    await run.until_ready()
    assert await run.stop() == 0
    assert events(log, "draining") == events(log, "ended") == ["gateway", "scheduler", "executor"]
    order = [line.split()[:2] for line in log.read_text().splitlines()[3:]]
    assert order[0] == ["gateway", "draining"]
    assert order[1] == ["gateway", "ended"]


async def test_a_dead_service_comes_back_on_its_old_port(tmp_path: Path) -> None:
    run = Run(three(log := tmp_path / "log"))
    await run.until_ready()
    for name in ("executor-1", "scheduler", "gateway"):
        before = dict(run.supervisor.addresses())
        child = next(child for child in run.supervisor.children if child.service.name == name)
        send(child, signal.SIGKILL)
        await until(lambda name=name: events(log, "ready").count(name) == 2)
        await until(lambda child=child: child.pid is not None)
        assert run.supervisor.addresses() == before
    assert await run.stop() == 0


async def test_a_service_that_drained_by_itself_is_started_anew(tmp_path: Path) -> None:
    run = Run(three(log := tmp_path / "log"))
    await run.until_ready()
    send(run.supervisor.children[0], signal.SIGTERM)
    await until(lambda: events(log, "ready").count("executor-0") == 2)
    assert await run.stop() == 0


async def test_a_service_that_keeps_dying_ends_it_all(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = Run([[standin("executor", log)], [standin("gateway", log, "--short-lived")]], max_short_lives=2)
    assert await asyncio.wait_for(run.task, 20) == 1
    assert events(log, "ready").count("gateway") == 3
    assert events(log, "ended") == ["executor"]


async def test_a_failed_first_start_ends_it_all_with_its_status(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = Run([[standin("good", log), standin("bad", log, "--fail-start", "2")], [standin("never", log)]])
    assert await asyncio.wait_for(run.task, 20) == 2
    assert "never" not in events(log, "ready")
    assert not run.ready.is_set()


async def test_silence_at_the_start_is_a_failed_start(tmp_path: Path) -> None:
    run = Run([[standin("slow", tmp_path / "log", "--start-s", "30", ready_timeout_s=0.3)]])
    assert await asyncio.wait_for(run.task, 20) == 1
    assert run.supervisor.children[0].pid is None


async def test_later_stages_start_while_a_bound_service_still_loads(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = Run([[standin("executor", log, "--bound-s", "3")], [standin("scheduler", log, peers=("executor",))]])
    await until(lambda: events(log, "ready"))
    assert events(log, "ready") == ["scheduler"]
    assert not run.ready.is_set()
    await run.until_ready()
    assert events(log, "ready") == ["scheduler", "executor"]
    assert f"scheduler ready:{run.addresses['executor']} " in log.read_text()
    assert await run.stop() == 0


async def test_a_bound_service_that_then_fails_ends_it_all_with_its_status(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = Run([[standin("executor", log, "--bound-s", "0.5", "--fail-start", "2")], [standin("gateway", log)]])
    assert await asyncio.wait_for(run.task, 20) == 2
    assert not run.ready.is_set()
    assert events(log, "ended") == events(log, "ready")


async def test_a_service_that_dies_while_another_loads_is_started_anew(tmp_path: Path) -> None:
    """Nobody watched it: the API of a gateway that was gone was waited for, for ten minutes."""
    log = tmp_path / "log"
    run = Run([[standin("executor", log, "--bound-s", "5")], [standin("gateway", log, "--dies-once")]])
    await until(lambda: events(log, "ready").count("gateway") == 2)
    assert "executor" not in events(log, "ready")
    await run.until_ready()
    assert await run.stop() == 0


async def test_a_bound_service_that_stays_silent_is_a_failed_start(tmp_path: Path) -> None:
    run = Run([[standin("slow", tmp_path / "log", "--bound-s", "30", ready_timeout_s=2.0)]])
    assert await asyncio.wait_for(run.task, 20) == 1
    assert run.supervisor.children[0].pid is None


async def test_a_stop_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    run = Run([[standin("slow", tmp_path / "log", "--start-s", "30")]])
    await until(lambda: run.supervisor.children[0].pid is not None)
    pid = run.supervisor.children[0].pid
    assert await run.stop() == 0
    assert gone([pid])


async def test_a_deaf_service_is_killed_in_time_and_the_status_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = Run([[standin("executor", log)], [standin("gateway", log, "--deaf")]], drain_timeout_s=0.0)
    pids = await run.until_ready()
    began = time.monotonic()
    assert await run.stop() == 1
    assert time.monotonic() - began < 5.0
    assert events(log, "ended") == ["executor"]
    assert gone(pids)


async def test_a_second_sigterm_changes_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = Run([[standin("gateway", log, "--drain-s", "0.3")]])
    await run.until_ready()
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: events(log, "draining"))
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(run.task, 20) == 0
    assert events(log, "ended") == ["gateway"]


async def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    run = Run([[standin("gateway", tmp_path / "log", "--deaf")]], drain_timeout_s=60.0)
    pids = await run.until_ready()
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)
    assert await asyncio.wait_for(run.task, 20) == 1
    assert gone(pids)


def launch(log: Path) -> tuple["subprocess.Popen[str]", list[psutil.Process]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.standin_launcher", str(log)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().split() == ["UP", "executor-0", "executor-1", "gateway", "scheduler"]
    return process, psutil.Process(process.pid).children(recursive=True)


def test_b080_kill_9_of_the_launcher_leaves_no_orphans(tmp_path: Path) -> None:
    process, family = launch(tmp_path / "log")
    assert len(family) == 4
    with process:
        process.kill()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_b079_a_signal_drains_and_exits_0(tmp_path: Path, number: signal.Signals) -> None:
    process, family = launch(log := tmp_path / "log")
    with process:
        process.send_signal(number)
        assert process.wait(15) == 0
    assert len(events(log, "ended")) == 4
    assert not psutil.wait_procs(family, timeout=5)[1]
