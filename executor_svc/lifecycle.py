"""One executor process from its first port to its exit: server, health, signals, drain."""

import asyncio
import logging
import signal
import sys
from dataclasses import dataclass
from typing import Final

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from drumline import rpc
from drumline.errors import Draining, Unavailable
from drumline.executor.v1.executor_pb2_grpc import add_ExecutorServicer_to_server
from executor_svc.backends.base import Backend
from executor_svc.service import ExecutorService
from executor_svc.worker import Worker

log = logging.getLogger(__name__)
READINESS: Final = "drumline.executor.v1.Executor"
"""The health service's name for "takes a new session"; its "" is whether the device works, draining or not."""
_QUIET_S: Final = 0.2
"""How long nothing may live here before a drain is over: a plan sent before the scheduler knew may still be on the wire."""
_STOP_S: Final = 2.0


@dataclass(frozen=True)
class Bound:
    """A server that has its port and answers nobody yet: connections wait in the port's queue."""

    server: grpc.aio.Server
    address: str


def bind(host: str, port: int) -> Bound:
    """Takes the port before a model is loaded, and says so. Raises Unavailable when it cannot be had."""
    server = rpc.new_server()
    try:
        bound = Bound(server, f"{host}:{server.add_insecure_port(f'{host}:{port}')}")
    except RuntimeError:
        raise Unavailable(f"port {port} on {host} cannot be bound") from None
    _say(f"BOUND executor {bound.address}")
    return bound


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Lifecycle:
    """Runs one executor. `run` returns the exit status: 0 after a drain, 1 when the worker died."""

    def __init__(self, backend: Backend, *, bound: Bound, drain_timeout_s: float) -> None:
        self._bound = bound
        self._drain_timeout_s = drain_timeout_s
        self._worker = Worker(backend, on_health=self._health_changed)
        self._service = ExecutorService(backend, self._worker)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._draining = False
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> int:
        """Serves until SIGTERM or SIGINT, then drains."""
        self._loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(name, self._wake.set)
        server = await self._start_server()
        try:
            await self._wake.wait()
            if not self._worker.dead:
                await self._drain()
        finally:
            self._service.end_session(Draining("this executor is shutting down"))
            await server.stop(_STOP_S)
            await asyncio.to_thread(self._worker.stop, timeout_s=_STOP_S)
        return 1 if self._worker.dead else 0

    async def _start_server(self) -> grpc.aio.Server:
        server = self._bound.server
        add_ExecutorServicer_to_server(self._service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        await self._publish_health()
        self._worker.start()
        await server.start()
        _say(f"READY executor {self._bound.address}")
        return server

    async def _drain(self) -> None:
        """Waits until nothing has lived here for a moment, or the time is over, or a second signal came."""
        self._wake.clear()
        self._draining = True
        await self._publish_health()
        self._service.start_draining(grace_s=self._drain_timeout_s)
        log.info("draining for at most %.1f s", self._drain_timeout_s)
        now = asyncio.get_running_loop().time
        deadline, quiet_since = now() + self._drain_timeout_s, now()
        while now() < deadline and now() - quiet_since < _QUIET_S and not self._wake.is_set():
            await asyncio.sleep(0.02)
            if self._service.is_busy:
                quiet_since = now()

    def _health_changed(self, healthy: bool) -> None:
        """Called on the worker thread."""
        log.warning("the executor is %s", "healthy again" if healthy else "unhealthy")
        if self._loop:
            self._loop.call_soon_threadsafe(self._note_health)

    def _note_health(self) -> None:
        if self._worker.dead:
            self._wake.set()
        self._publishing = asyncio.ensure_future(self._publish_health())

    async def _publish_health(self) -> None:
        states = health_pb2.HealthCheckResponse
        well = self._worker.healthy
        for name, serving in (("", well), (READINESS, well and not self._draining)):
            await self._health.set(name, states.SERVING if serving else states.NOT_SERVING)
