"""The files under docker/, held against what they speak of: the settings, the ports, the metrics. No engine is needed."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline.settings import ServiceSettings, SettingsError, env_of, resolve
from executor_svc.config import ExecutorSettings
from gateway.config import GatewaySettings
from launcher.rooms import ROOMS
from scheduler_svc.config import SchedulerSettings

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
KINDS: dict[str, type[ServiceSettings]] = {"executor": ExecutorSettings, "gateway": GatewaySettings, "scheduler": SchedulerSettings}
PORTS = {"gateway": 8000, "scheduler": 7001, "executor": 7101}
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
MANIFESTS = [
    (path.name, document)
    for path in sorted((DOCKER / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def kind_of(name: str) -> str:
    return next(kind for kind in KINDS if name.startswith(kind))


def interpolated(value: str, given: dict[str, str]) -> str:
    return VARIABLE.sub(lambda found: given.get(found[1]) or found[2], value)


def manifests(kind: str) -> dict[str, dict[str, Any]]:
    return {document["metadata"]["name"]: document for _, document in MANIFESTS if document["kind"] == kind}


def strings(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield str(key)
            yield from strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)
    else:
        yield str(value)


def instructions(path: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")))
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in text.splitlines() if line.strip()]


def image_environment(path: Path) -> dict[str, str]:
    words = [word for name, rest in instructions(path) if name == "ENV" for word in shlex.split(rest)]
    return dict(word.split("=", 1) for word in words)


# ------------------------------------------------------------------------------------------------------------ Dockerfiles


def test_one_dockerfile_a_service() -> None:
    assert [path.name.split(".")[0] for path in DOCKERFILES] == sorted(KINDS)
    assert not (DOCKER / "__init__.py").exists()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_are_small_unprivileged_and_say_how_they_are(path: Path) -> None:
    lines = instructions(path)
    names = [name for name, _ in lines]
    assert names[0] == "FROM"
    for name, rest in lines:
        if name == "FROM":
            assert re.fullmatch(r"python:3\.11-slim( AS \w+)?", rest)
        if name in ("ENTRYPOINT", "CMD"):
            assert rest.startswith("["), "exec form: a shell would swallow SIGTERM"
        if name == "RUN" and "pip install" in rest:
            assert "--no-cache-dir" in rest
        if name == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest
        assert name != "ADD"
    last = names[len(names) - 1 - names[::-1].index("FROM") :]
    for needed in ("USER", "HEALTHCHECK", "EXPOSE", "ENTRYPOINT", "STOPSIGNAL"):
        assert needed in last
    assert dict(lines)["USER"] not in ("root", "0")
    assert f"{PORTS[kind_of(path.name)]}" in dict(lines)["EXPOSE"].split()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_commands_in_images_exist(path: Path) -> None:
    for name, rest in instructions(path):
        if name in ("ENTRYPOINT", "HEALTHCHECK"):
            command = yaml.safe_load(rest[rest.index("[") :])
            assert command[0] == "drumline"
            assert command[1] in ROOMS


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_settings_in_images_are_settings(path: Path) -> None:
    kind = kind_of(path.name)
    settings = resolve(KINDS[kind], section=kind, argv=[], environ=image_environment(path))
    assert settings.host == "0.0.0.0"  # type: ignore[attr-defined]
    assert settings.port == PORTS[kind]  # type: ignore[attr-defined]


def test_only_the_executor_carries_torch() -> None:
    for path in DOCKERFILES:
        installs = " ".join(rest for name, rest in instructions(path) if name in ("RUN", "ARG"))
        assert ("torch" in installs) == (kind_of(path.name) == "executor")


def test_the_executor_image_has_libgomp_and_a_writable_numba_cache() -> None:
    lines = instructions(DOCKER / "executor.Dockerfile")
    cache = image_environment(DOCKER / "executor.Dockerfile")["NUMBA_CACHE_DIR"]
    runs = " ".join(rest for name, rest in lines if name == "RUN")
    assert "libgomp1" in runs
    assert f"install -d -o 10001 {cache}" in runs
    assert dict(lines)["USER"] == "10001"


def test_the_build_context_holds_all_that_the_wheel_is_made_of() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    project = (ROOT / "pyproject.toml").read_text()
    packages = re.search(r"^packages = \[(.*)\]$", project, re.MULTILINE)
    assert packages is not None
    assert {name.split("/")[0] for name in re.findall(r'"([^"]+)"', packages[1])} <= allowed
    assert {"pyproject.toml", "README.md", "LICENSE", "constraints"} <= allowed


# ---------------------------------------------------------------------------------------------------------------- compose


def test_compose_publishes_the_gateway_only() -> None:
    assert {name for name, service in COMPOSE["services"].items() if service.get("ports")} == {"gateway"}
    assert COMPOSE["networks"]["back"] == {"internal": True}
    assert {name for name, s in COMPOSE["services"].items() if "front" in s["networks"]} == {"gateway"}


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_compose_services_are_bounded_drained_and_unprivileged(name: str) -> None:
    service = COMPOSE["services"][name]
    limits = service["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory"}
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    drain_s = KINDS[kind_of(name)]().drain_timeout_s  # type: ignore[attr-defined]
    assert int(service["stop_grace_period"].removesuffix("s")) >= drain_s + 5
    assert "container_name" not in service, "a fixed name cannot be scaled"
    dockerfile = ROOT / service["build"]["dockerfile"]
    assert dockerfile in DOCKERFILES
    assert dockerfile.name == f"{kind_of(name)}.Dockerfile"
    for volume in service.get("volumes", []):
        source = interpolated(volume, {}).split(":")[0]
        assert source in COMPOSE["volumes"]
    arguments = dict(rest.split("=", 1) for key, rest in instructions(dockerfile) if key == "ARG" and "=" in rest)
    assert set(service["build"].get("args", {})) <= set(arguments)


@pytest.mark.parametrize("given", [{}, {"API_KEY": "a,b", "RECORD": "/recordings", "MODEL": "/models/x", "NUM_THREADS": "1"}])
@pytest.mark.parametrize("name", COMPOSE["services"])
def test_compose_environment_is_made_of_settings(name: str, given: dict[str, str]) -> None:
    kind = kind_of(name)
    said = {key: interpolated(str(value), given) for key, value in COMPOSE["services"][name]["environment"].items()}
    environ = image_environment(DOCKER / f"{kind}.Dockerfile") | said
    settings = resolve(KINDS[kind], section=kind, argv=[], environ=environ).model_dump()
    if kind == "scheduler":
        assert settings["executor"] == ("executor:7101",)
    if kind == "gateway":
        assert settings["scheduler"] == "scheduler:7001"
        assert settings["api_key"] == (("a", "b") if given else ())


def test_compose_uses_no_variable_without_a_default() -> None:
    for text in strings(COMPOSE):
        assert "$" not in VARIABLE.sub("", text)


def test_gpu_replicas_share_one_folder_of_leases() -> None:
    service = COMPOSE["services"]["executor-gpu"]
    assert "leases:/tmp" in service["volumes"], "the lease files lie in the folder for temporary files"
    assert "tmpfs" not in service
    assert service["profiles"] == ["gpu"]


def test_compose_is_what_compose_reads() -> None:
    try:
        version = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("no docker command here")
    if version.returncode:
        pytest.skip("the docker command here has no compose plugin")
    done = subprocess.run(["docker", "compose", "-f", str(DOCKER / "compose.yaml"), "config", "-q"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------------------- Kubernetes


def test_kustomization_lists_every_manifest() -> None:
    listed = next(document for name, document in MANIFESTS if name == "kustomization.yaml")["resources"]
    assert sorted(listed) == sorted({name for name, _ in MANIFESTS} - {"kustomization.yaml"})


@pytest.mark.parametrize("name", KINDS)
def test_deployments_probe_the_ports_that_they_open_and_name_settings(name: str) -> None:
    deployment = manifests("Deployment")[name]
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["enableServiceLinks"] is False, "service links would add DRUMLINE-like names, and unknown names are errors"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["image"] == f"drumline-{name}"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert PORTS[name] in ports.values()
    for probe in ("readinessProbe", "livenessProbe"):
        target = container[probe].get("grpc", container[probe].get("httpGet"))
        assert target["port"] in ports.values() or target["port"] in ports
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    said = {one["name"]: str(one.get("value", "a,b")) for one in container["env"]}
    settings = resolve(KINDS[name], section=name, argv=[], environ=image_environment(DOCKER / f"{name}.Dockerfile") | said)
    assert pod["terminationGracePeriodSeconds"] >= settings.drain_timeout_s + 5  # type: ignore[attr-defined]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_executors_and_scheduler_are_found_by_headless_services() -> None:
    services = manifests("Service")
    for name in ("executor", "scheduler"):
        assert services[name]["spec"]["clusterIP"] == "None"
        assert services[name]["spec"]["ports"][0]["port"] == PORTS[name]
    assert "clusterIP" not in services["gateway"]["spec"]


def test_one_scheduler_at_a_time() -> None:
    scheduler = manifests("Deployment")["scheduler"]["spec"]
    assert (scheduler["replicas"], scheduler["strategy"]["type"]) == (1, "Recreate")


def test_the_autoscaler_reads_a_metric_that_exists() -> None:
    scaler = manifests("HorizontalPodAutoscaler")["executor"]["spec"]
    assert scaler["scaleTargetRef"]["name"] in manifests("Deployment")
    assert "replicas" not in manifests("Deployment")["executor"]["spec"], "the autoscaler owns the number"
    [metric] = scaler["metrics"]
    assert metric["object"]["describedObject"]["name"] == "scheduler"
    name = metric["object"]["metric"]["name"].removeprefix("drumline:")
    assert f'"{name}"' in (ROOT / "scheduler_svc/metrics.py").read_text()


def test_the_budgets_keep_somebody_there() -> None:
    budgets = manifests("PodDisruptionBudget")
    assert budgets["gateway"]["spec"]["minAvailable"] == 1
    assert budgets["executor"]["spec"]["maxUnavailable"] == 1


def test_an_unknown_name_would_be_found() -> None:
    """The checks above rest on this: a name that no setting knows is refused."""
    with pytest.raises(SettingsError):
        resolve(GatewaySettings, section="gateway", argv=[], environ={env_of("gateway", "prot"): "1"})
