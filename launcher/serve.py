"""`drumline serve`: which processes make a Drumline, and what each of them is told."""

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from drumline import logs, settings
from executor_svc.config import ExecutorSettings
from gateway.config import GatewaySettings
from launcher.config import ServeSettings
from launcher.greeting import greet
from launcher.process import Addresses, Service
from launcher.supervisor import Supervisor
from scheduler_svc.config import SchedulerSettings

log = logging.getLogger(__name__)
_LOOPBACK: Final = ("--host", "127.0.0.1")
_GATEWAY_ONLY: Final = frozenset({"served_model_name", "api_key"})
_BY_ENVIRONMENT: Final = frozenset({"api_key"})
"""Handed on out of sight of `ps`."""


@dataclass(frozen=True)
class _Kind:
    """One kind of service: its module, section and settings."""

    module: str
    section: str
    settings: type[settings.ServiceSettings]


_EXECUTOR: Final = _Kind("executor_svc", "executor", ExecutorSettings)
_SCHEDULER: Final = _Kind("scheduler_svc", "scheduler", SchedulerSettings)
_GATEWAY: Final = _Kind("gateway", "gateway", GatewaySettings)


def main(argv: list[str]) -> int:
    """Serves until a signal; the exit status of `drumline serve`."""
    wanted = settings.load(ServeSettings, section="serve", argv=argv)
    logs.configure("launcher", level=wanted.log_level or "info")
    stages = stages_of(wanted, config=_config_of(argv))
    if why := _port_taken(wanted.host, wanted.port):
        log.error("--port %d: %s (0 takes any free one)", wanted.port, why)
        return 1
    supervisor = Supervisor(
        stages,
        drain_timeout_s=wanted.drain_timeout_s,
        on_ready=lambda addresses: greet(addresses["gateway"], wanted),
    )
    return asyncio.run(supervisor.run())


def stages_of(wanted: ServeSettings, *, config: str | None) -> list[list[Service]]:
    """Executors, then the scheduler that dials them, then the gateway that dials it.

    Every service's settings are read here once, so that what is wrong with any of them ends the command before anything is started.
    """
    flags = {kind.section: _handed_on(wanted, kind, config=config) for kind in (_EXECUTOR, _SCHEDULER, _GATEWAY)}
    executor = settings.load(ExecutorSettings, section="executor", argv=flags["executor"])
    settings.load(SchedulerSettings, section="scheduler", argv=flags["scheduler"])
    settings.load(GatewaySettings, section="gateway", argv=flags["gateway"])
    threads = _threads_each(executor, num_executors=wanted.executors)
    own = [*flags["executor"], *_LOOPBACK, *threads]
    executors = [_service(_EXECUTOR, f"executor-{index}", own, wanted) for index in range(wanted.executors)]
    scheduler = _service(_SCHEDULER, "scheduler", [*flags["scheduler"], *_LOOPBACK], wanted, dial="--executor", peers=executors)
    gateway = _service(
        _GATEWAY,
        "gateway",
        [*flags["gateway"], "--host", wanted.host],
        wanted,
        dial="--scheduler",
        peers=[scheduler],
        port=wanted.port,
        env={settings.env_of("gateway", "api_key"): json.dumps(wanted.api_key)} if wanted.api_key else {},
    )
    return [executors, [scheduler], [gateway]]


def _service(
    kind: _Kind,
    name: str,
    argv: Sequence[str],
    wanted: ServeSettings,
    *,
    dial: str = "",
    peers: Sequence[Service] = (),
    port: int = 0,
    env: Mapping[str, str] | None = None,
) -> Service:
    """The process of one service, which dials `peers` with the flag `dial`."""

    def dialled(addresses: Addresses) -> list[str]:
        return [word for peer in peers for word in (dial, addresses[peer.name])]

    return Service(
        name=name,
        # -P: a folder named gateway where the user happens to stand is not our gateway.
        command=[sys.executable, "-P", "-m", kind.module, *argv],
        argv_of=dialled,
        port=port,
        env=env or {},
        ready_timeout_s=wanted.ready_timeout_s,
    )


def _handed_on(wanted: ServeSettings, kind: _Kind, *, config: str | None) -> list[str]:
    """The flags that were given to `serve` and that this service has too."""
    words = ["--config", config] if config else []
    words += ["--drain-timeout-s", f"{wanted.drain_timeout_s:g}"]
    own = {"host", "port", "drain_timeout_s"} | (set() if kind is _GATEWAY else _GATEWAY_ONLY)
    for field in ServeSettings.model_fields.keys() & kind.settings.model_fields.keys() - own - _BY_ENVIRONMENT:
        words += _words(settings.flag_of(field), getattr(wanted, field))
    return words


def _words(flag: str, value: Any) -> list[str]:
    """One setting as command-line words; None = not given."""
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    values = value if isinstance(value, tuple) else (value,)
    return [word for one in values for word in (flag, str(one.absolute() if isinstance(one, Path) else one))]


def _threads_each(executor: ExecutorSettings, *, num_executors: int) -> list[str]:
    """Executors on one machine share its processors: without this each would start a thread for all of them."""
    if executor.num_threads or num_executors == 1:
        return []
    return ["--num-threads", str(max(1, len(os.sched_getaffinity(0)) // num_executors))]


def _port_taken(host: str, port: int) -> str:
    """Why the gateway could not listen there, or empty: better said now than after a model was loaded."""
    try:
        with socket.create_server((host, port)):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _config_of(argv: Sequence[str]) -> str | None:
    """The file that --config names: the services read their own tables of it."""
    for index, word in enumerate(argv):
        if word == "--config" and index + 1 < len(argv):
            return argv[index + 1]
        if word.startswith("--config="):
            return word.partition("=")[2]
    return None
