"""What `drumline serve` tells each process."""

import json
import os

import pytest

from drumline import settings
from executor_svc.config import ExecutorSettings
from gateway.config import GatewaySettings
from launcher.config import ServeSettings
from launcher.process import Service
from launcher.serve import stages_of
from scheduler_svc.config import SchedulerSettings

OWN = {"executors", "ready_timeout_s"}
ANYWHERE = {"executor-0": "x:1", "executor-1": "x:2", "scheduler": "x:3"}


def services(**fields: object) -> dict[str, Service]:
    stages = stages_of(ServeSettings(**fields), config=None)
    return {service.name: service for stage in stages for service in stage}


def told(service: Service, addresses: dict[str, str] | None = None) -> str:
    return " ".join([*service.command, *service.argv_of(addresses or ANYWHERE)])


def test_every_flag_of_serve_is_its_own_or_reaches_a_service() -> None:
    reached = ExecutorSettings.model_fields | SchedulerSettings.model_fields | GatewaySettings.model_fields
    assert set(ServeSettings.model_fields) - OWN <= set(reached)


def test_stages_start_executors_then_scheduler_then_gateway() -> None:
    stages = stages_of(ServeSettings(executors=3), config=None)
    assert [[service.name for service in stage] for stage in stages] == [
        ["executor-0", "executor-1", "executor-2"],
        ["scheduler"],
        ["gateway"],
    ]


def test_the_scheduler_dials_the_executors_and_the_gateway_the_scheduler() -> None:
    found = services(executors=2)
    addresses = {"executor-0": "127.0.0.1:1", "executor-1": "127.0.0.1:2", "scheduler": "127.0.0.1:3"}
    assert told(found["scheduler"], addresses).endswith("--executor 127.0.0.1:1 --executor 127.0.0.1:2")
    assert told(found["gateway"], addresses).endswith("--scheduler 127.0.0.1:3")


def test_only_the_gateway_leaves_loopback() -> None:
    found = services(host="0.0.0.0", port=1234)
    assert "--host 0.0.0.0" in told(found["gateway"])
    assert found["gateway"].port == 1234
    for name in ("executor-0", "scheduler"):
        assert "--host 127.0.0.1" in told(found[name])
        assert found[name].port == 0


def test_a_flag_goes_to_every_service_that_has_it() -> None:
    found = services(max_num_seqs=7, max_model_len=99, record="recordings", throughput_log=True, served_model_name=("a", "b"))
    assert "--max-num-seqs 7" in told(found["executor-0"])
    assert "--max-num-seqs 7" in told(found["scheduler"])
    assert "--max-model-len 99" in told(found["executor-0"])
    assert "--max-model-len" not in told(found["scheduler"])
    assert f"--record {os.path.abspath('recordings')}" in told(found["scheduler"])
    assert "--throughput-log" in told(found["scheduler"])
    assert "--served-model-name a --served-model-name b" in told(found["gateway"])
    assert "--served-model-name" not in told(found["executor-0"])


def test_a_flag_that_was_not_given_is_not_handed_on() -> None:
    for service in services().values():
        assert "None" not in told(service)
        assert "--max-num-seqs" not in service.command


def test_api_keys_travel_out_of_sight_of_ps() -> None:
    found = services(api_key=("secret-1", "with,comma"))
    assert all("secret" not in told(service) for service in found.values())
    assert json.loads(found["gateway"].env["DRUMLINE_GATEWAY_API_KEY"]) == ["secret-1", "with,comma"]
    assert settings.resolve(GatewaySettings, section="gateway", argv=[], environ=found["gateway"].env).api_key == (
        "secret-1",
        "with,comma",
    )
    assert not found["scheduler"].env


def test_executors_share_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert "--num-threads" not in told(services()["executor-0"])
    assert "--num-threads 4" in told(services(executors=2)["executor-1"])
    assert "--num-threads 1" in told(services(executors=64)["executor-63"])


def test_a_thread_count_that_was_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMLINE_EXECUTOR_NUM_THREADS", "3")
    assert "--num-threads" not in told(services(executors=2)["executor-0"])


@pytest.mark.parametrize(
    ("environ", "fields", "message"),
    [
        ({"DRUMLINE_EXECUTOR_MAX_NUM_SEQ": "1"}, {}, "DRUMLINE_EXECUTOR_MAX_NUM_SEQ; did you mean DRUMLINE_EXECUTOR_MAX_NUM_SEQS?"),
        ({"DRUMLINE_SCHEDULER_PORT": "x"}, {}, "DRUMLINE_SCHEDULER_PORT: Input should be a valid integer"),
        ({}, {"precision": "f31"}, "drumline executor: --precision: Input should be"),
        ({}, {"kv_memory": "plenty"}, "drumline executor: --kv-memory: "),
    ],
)
def test_what_is_wrong_with_any_service_is_said_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environ: dict[str, str],
    fields: dict[str, object],
    message: str,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as stop:
        services(**fields)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
