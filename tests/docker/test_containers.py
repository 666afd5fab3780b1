"""Containers for real: build, up, chat, scale to two, replay. Needs a Docker engine; skipped, with the reason, without one."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from testcontainers.compose import DockerCompose

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1800)]


def missing() -> str:
    """Why containers cannot run here; empty if they can."""
    if shutil.which("docker") is None:
        return "no docker command here"
    if subprocess.run(["docker", "info"], capture_output=True, timeout=30).returncode:
        return "no Docker engine answers here"
    if subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30).returncode:
        return "the docker command here has no compose plugin"
    return ""


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCompose]:
    if why := missing():
        pytest.skip(why)
    env_file = tmp_path_factory.mktemp("compose") / "env"
    env_file.write_text("PORT=0\nRECORD=/recordings\n")
    with DockerCompose(ROOT / "docker", compose_file_name="compose.yaml", build=True, wait=True, env_file=str(env_file)) as up:
        yield up


def url_of(compose: DockerCompose) -> str:
    return f"http://{compose.get_service_host('gateway', 8000)}:{compose.get_service_port('gateway', 8000)}"


def chat(url: str) -> str:
    body = {"messages": [{"role": "user", "content": "What is the capital of Germany?"}], "temperature": 0, "max_tokens": 16}
    model = httpx.get(url + "/v1/models").json()["data"][0]["id"]
    reply = httpx.post(url + "/v1/chat/completions", json=body | {"model": model}, timeout=120)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def test_chat_scale_to_two_and_replay(compose: DockerCompose) -> None:
    url = url_of(compose)
    first = chat(url)
    assert "Berlin" in first
    scale = ["docker", "compose", "-f", str(ROOT / "docker/compose.yaml"), "up", "-d", "--no-recreate", "--scale", "executor=2"]
    subprocess.run(scale, check=True, timeout=300)
    end = time.monotonic() + 120
    while [one["state"] for one in httpx.get(url + "/status").json()["executors"]].count("ready") < 2:
        assert time.monotonic() < end, json.dumps(httpx.get(url + "/status").json())
        time.sleep(1)
    assert chat(url) == first
    out, errors, status = compose.exec_in_container(
        ["drumline", "replay", "/recordings", "--against", "scheduler"], service_name="scheduler"
    )
    assert status == 0, out + errors
