"""A whole Drumline as its users run it: `drumline serve` as a process, on a free port, ended by its id."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx
import psutil

from tests.support.generate import Answer

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Recorded:
    """A recording of every prompt in every way of sampling, in chunks of 64 tokens, and what its clients got."""

    folder: Path
    answers: dict[str, list[Answer]]


class Served:
    """Starts `drumline serve` with the given flags, waits for its readiness line, stops it and checks that nothing is left.

    Attributes:
        url: `http://127.0.0.1:port`.
        lines: the last lines of its standard error, for failure messages.
    """

    def __init__(self, *flags: str, ready_s: float = 280.0) -> None:
        self._flags = flags
        self._ready_s = ready_s
        self.lines: deque[str] = deque(maxlen=400)
        self.url = ""

    def __enter__(self) -> "Served":
        env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", "HF_HUB_OFFLINE": "1"}
        # Dies with the test run, however that ends: an orphan would keep a core busy for everybody after it.
        wrapper = [sys.executable, str(ROOT / "launcher" / "child.py"), str(os.getpid())]
        command = [*wrapper, sys.executable, "-m", "launcher", "serve", "--port", "0", *self._flags]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        ready = threading.Event()

        def read() -> None:
            for line in self.process.stdout:
                self.lines.append(line.rstrip())
                if not self.url and (found := re.search(r"http://127\.0\.0\.1:\d+", line)):
                    self.url = found[0]
                    ready.set()

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        if not ready.wait(self._ready_s):
            self.__exit__(None, None, None)
            raise RuntimeError("not ready:\n" + "\n".join(self.lines))
        self.wait_ready()
        return self

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if httpx.get(self.url + "/ready", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise RuntimeError("never ready:\n" + "\n".join(self.lines))

    def children(self, service: str) -> list[psutil.Process]:
        """Live child processes of one kind: `gateway`, `scheduler` or `executor`."""
        module = {"gateway": "gateway", "scheduler": "scheduler_svc", "executor": "executor_svc"}[service]
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if module in child.cmdline():
                    found.append(child)
            except psutil.NoSuchProcess:
                continue
        return found

    def status(self) -> dict[str, object]:
        return httpx.get(self.url + "/status", timeout=10).json()

    def wait_idle(self, timeout_s: float = 10.0) -> dict[str, object]:
        """Waits until no sequence waits or runs and no block is held; returns the last status."""
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.status()
            held = sum(int(e.get("num_blocks_used", 0)) for e in status["executors"])
            if not int(status.get("num_waiting", 0)) and not int(status.get("num_running", 0)) and not held:
                return status
            if time.monotonic() > deadline:
                raise AssertionError(f"not idle: {status}")
            time.sleep(0.05)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        family = (
            [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)] if self.alive() else []
        )
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(45)
        except subprocess.TimeoutExpired:
            code = None
        _, left = psutil.wait_procs(family, timeout=5)
        for process in left:
            process.kill()
        self.process.stdout.close() if self.process.poll() is not None and not left else None
        self._reader.join(5)
        if kind is None:
            assert code == 0, f"exit {code}:\n" + "\n".join(self.lines)
            assert not left, f"left behind: {left}"

    def alive(self) -> bool:
        return self.process.poll() is None
