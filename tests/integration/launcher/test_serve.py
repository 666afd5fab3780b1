"""`drumline serve` as a user runs it: real gateway, scheduler and executors, with the fake backend, so that no model is loaded."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[3]
DRUMLINE = [sys.executable, "-m", "launcher"]
READY_S = 90.0


def drumline(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*DRUMLINE, *arguments],
        cwd=ROOT,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


class Serving:
    """`drumline serve` on a free port; ended with SIGTERM, which must succeed."""

    def __init__(self, *flags: str, **environ: str) -> None:
        command = [*DRUMLINE, "serve", "--backend", "fake", "--port", "0", "--drain-timeout-s", "10", *flags]
        self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environ, stdout=subprocess.PIPE, text=True)
        self.said: list[str] = []
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            self.said.append(line)
            if "-d '" in line:
                break
        assert self.said, f"exit {self.process.wait(10)}"
        self.url = self.said[0].split()[2]
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def __enter__(self) -> "Serving":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.code = self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait(5)
            if self.process.stdout:
                self.process.stdout.close()
            _, self.left = psutil.wait_procs(self.family, timeout=5)
            for process in self.left:
                process.kill()

    def child(self, module: str) -> psutil.Process:
        return next(p for p in psutil.Process(self.process.pid).children(recursive=True) if module in p.cmdline())

    def executors(self) -> list[dict[str, object]]:
        return list(httpx.get(self.url + "/status").json()["executors"])

    def until(self, condition: object, timeout_s: float = 30.0) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, self.executors()
            time.sleep(0.05)


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving("--executors", "2") as it:
        yield it
    assert it.code == 0
    assert not it.left


def test_one_readiness_line_and_a_curl_that_works_as_it_stands(serving: Serving) -> None:
    assert re.fullmatch(r"READY serve http://127\.0\.0\.1:\d+\n", serving.said[0])
    words = shlex.split("".join(serving.said[2:]).replace("\\\n", " "))
    assert words[0] == "curl"
    url = next(word for word in words if word.startswith("http"))
    reply = httpx.post(url, content=words[words.index("-d") + 1], headers={"content-type": "application/json"})
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"]


def test_only_the_gateway_listens_beyond_loopback_if_asked(serving: Serving) -> None:
    """B104: what listens, and where."""
    for process in serving.family:
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip.removeprefix("::ffff:") == "127.0.0.1"


def test_status_shows_both_executors(serving: Serving) -> None:
    done = drumline("status", "--url", serving.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" ready ") == 2
    assert "NA (" in done.stdout
    told = json.loads(drumline("status", "--url", serving.url, "--json").stdout)
    assert len(told["executors"]) == 2


def test_chat_asks_once(serving: Serving) -> None:
    done = drumline("chat", "--url", serving.url, "--max-tokens", "8", "--temperature", "0", "hello")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_chat_converses_over_a_pipe(serving: Serving) -> None:
    command = [*DRUMLINE, "chat", "--url", serving.url, "--max-tokens", "4"]
    done = subprocess.run(command, cwd=ROOT, input="one\n\n/clear\ntwo\n/quit\nnever\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines()[1:] if line.strip()]) >= 2


def test_chat_repeats_what_the_server_says_no_to(serving: Serving) -> None:
    done = drumline("chat", "--url", serving.url, "--model", "no-such-model", "hello")
    assert done.returncode == 1
    assert "no-such-model" in done.stderr
    assert "Traceback" not in done.stderr


def test_nobody_there_is_one_line_and_status_1() -> None:
    for command in (["status"], ["chat", "hello"]):
        done = drumline(*command, "--url", "http://127.0.0.1:9")
        assert done.returncode == 1
        assert "nobody answers at http://127.0.0.1:9" in done.stderr
        assert "Traceback" not in done.stderr


def test_probe_tells_health_of_http_and_grpc(serving: Serving) -> None:
    address = str(serving.executors()[0]["address"])
    assert drumline("probe", f"{serving.url}/ready").returncode == 0
    assert drumline("probe", address).returncode == 0
    assert drumline("probe", f"{serving.url}/nothing").returncode == 1
    assert drumline("probe", "127.0.0.1:9").returncode == 1


def test_bench_quick_prints_its_table_and_files(serving: Serving, tmp_path: Path) -> None:
    files = ["--json-file", str(tmp_path / "b.json"), "--markdown-file", str(tmp_path / "b.md")]
    done = drumline("bench", "--quick", "--url", serving.url, "--workload", "W1", "--workload", "W4", *files)
    assert done.returncode == 0, done.stderr
    assert "tokens/s" in done.stdout
    told = json.loads((tmp_path / "b.json").read_text())
    assert set(told["workloads"]) == {"W1", "W4"}
    [run] = told["workloads"]["W1"]["runs"]
    assert run["num_output_tokens"] == 16
    assert run["tokens_per_s"] > 0
    assert run["cpu_s"] is None
    assert "| NA |" in (tmp_path / "b.md").read_text()


def test_bench_measures_a_server_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    done = drumline("bench", "--quick", "--workload", "W1", "--json-file", str(out), "--", "--backend", "fake")
    assert done.returncode == 0, done.stderr
    [run] = json.loads(out.read_text())["workloads"]["W1"]["runs"]
    assert set(run["cpu_s"]) == set(run["rss_bytes"]) == {"gateway", "scheduler", "executor"}
    assert 0 <= run["idle_share"] <= 1


def test_executors_and_scheduler_that_die_come_back(serving: Serving) -> None:
    ask = ["chat", "--url", serving.url, "--max-tokens", "4", "hello"]
    for module in ("executor_svc", "scheduler_svc"):
        dead = serving.child(module)
        dead.kill()
        serving.until(lambda dead=dead: not dead.is_running())
        serving.until(lambda: httpx.get(serving.url + "/ready").status_code == 200)
        serving.until(lambda: [e["state"] for e in serving.executors()] == ["ready", "ready"])
        assert drumline(*ask).returncode == 0
    serving.family = psutil.Process(serving.process.pid).children(recursive=True)


def test_r17_sigterm_drains_what_streams_and_refuses_what_is_new() -> None:
    body = {"model": "drumline-fake", "prompt": "hello", "max_tokens": 60, "ignore_eos": True, "stream": True}
    with Serving(DRUMLINE_EXECUTOR_FAKE_STEP_MS="30") as it:
        with httpx.stream("POST", it.url + "/v1/completions", json=body, timeout=30) as reply:
            lines = reply.iter_lines()
            next(lines)
            it.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert "data: [DONE]" in rest
        assert not any('"error"' in line for line in rest)
    assert it.code == 0
    assert not it.left


def test_b080_kill_9_of_drumline_serve_leaves_no_process_and_no_port() -> None:
    with Serving() as it:
        assert len(it.family) == 3
        it.process.kill()
        assert not psutil.wait_procs(it.family, timeout=10)[1]
    with pytest.raises(httpx.ConnectError):
        httpx.get(it.url + "/live")


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        (["--max-model-ln", "5"], {}, "unknown flag --max-model-ln; did you mean --max-model-len?"),
        ([], {"DRUMLINE_GATEWAY_PROT": "1"}, "DRUMLINE_GATEWAY_PROT; did you mean DRUMLINE_GATEWAY_PORT?"),
        ([], {"DRUMLINE_SRVE_PORT": "1"}, "unknown environment name DRUMLINE_SRVE_PORT"),
        (["--config", "no-such-file.toml"], {}, "no-such-file.toml: No such file"),
    ],
)
def test_unknown_names_end_it_with_2_before_anything_starts(flags: list[str], environ: dict[str, str], message: str) -> None:
    done = drumline("serve", "--backend", "fake", "--port", "0", *flags, **environ)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not done.stdout


def test_a_port_that_is_taken_is_said_before_a_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = drumline("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "Address already in use" in done.stderr
    assert "executor" not in done.stderr


def test_a_folder_of_the_users_is_not_taken_for_a_service(tmp_path: Path) -> None:
    (tmp_path / "scheduler_svc").mkdir()
    (tmp_path / "scheduler_svc" / "__main__.py").write_text("raise SystemExit('not ours')")
    command = [sys.executable, "-c", "from launcher.__main__ import main; main()", "serve", "--backend", "fake", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("READY serve ")
        finally:
            process.terminate()
            assert process.wait(30) == 0
