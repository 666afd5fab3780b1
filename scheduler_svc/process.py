"""One scheduler, put together: core, recorder, engine, discovery, gRPC server, metrics. The only place that knows all of them."""

import asyncio
import contextlib
import dataclasses
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast

from grpc_health.v1 import health_pb2_grpc

from drumline.errors import Draining, DrumlineError, Internal, InvalidRequest, Unavailable
from drumline.rpc import new_server
from scheduler_svc.config import SchedulerSettings
from scheduler_svc.core.errors import ContradictingCadence
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import Limits
from scheduler_svc.discovery import Discovery, Resolve, resolve_by_system
from scheduler_svc.engine import Engine
from scheduler_svc.executor_client import ExecutorClient, Liveness
from scheduler_svc.fleet import Fleet
from scheduler_svc.metrics import exposition, log_throughput
from scheduler_svc.ports import Clock, MonotonicClock, Recorder
from scheduler_svc.recording import FileRecorder
from scheduler_svc.service import Health, Service
from scheduler_svc.view import View, view_of

_LOG = logging.getLogger(__name__)


def limits_of(settings: SchedulerSettings) -> Limits:
    """The core's bounds."""
    return Limits(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(Limits)})


class SchedulerProcess:
    """Everything of one scheduler, running between `start` and `stop`.

    Attributes:
        port: where gateways dial. metrics_port: None = off.
        failed: set with the reason once the engine cannot go on.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        make_recorder: Callable[..., Recorder] = FileRecorder,
        clock: Clock | None = None,
        resolve: Resolve = resolve_by_system,
        epoch: int | None = None,
        max_backlog: int | None = None,
    ) -> None:
        """The keyword arguments replace the real parts (`make_recorder` gets what FileRecorder gets); `epoch` is the start time,
        ns since the Unix epoch."""
        self.settings = settings
        self.port = 0
        self.metrics_port: int | None = None
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        limits, clock, epoch = limits_of(settings), clock or MonotonicClock(), epoch or time.time_ns()
        try:
            self.core = Scheduler(limits)
        except ContradictingCadence as error:
            raise InvalidRequest(str(error)) from None
        try:
            self.recorder = make_recorder(
                session_epoch=epoch,
                freeze=self.core.freeze,
                settings={"limits": dataclasses.asdict(limits)},
                directory=settings.record,
                segment_bytes=settings.record_segment_bytes,
                max_bytes=settings.record_max_bytes,
                clock=clock.now_ns,
            )
        except OSError as error:
            raise Unavailable(f"--record {settings.record}: {error.strerror}") from None
        fleet = Fleet(epoch=epoch)
        self.engine = Engine(
            self.core,
            fleet=fleet,
            recorder=self.recorder,
            clock=clock,
            plans_in_flight=self.core.policy.plans_in_flight(limits),
            default_timeout_ms=int(settings.default_timeout_s * 1000),
        )
        lively = Liveness(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(Liveness)})
        self.discovery: Discovery[ExecutorClient] = Discovery(
            settings.executor,
            start=lambda address: ExecutorClient(
                address, owner=self.engine, fleet=fleet, clock=clock, liveness=lively, limits=limits
            ),
            interval_s=settings.resolve_interval_s,
            resolve=resolve,
        )
        self.service = Service(self.engine, view=self.view, **({} if max_backlog is None else {"max_backlog": max_backlog}))
        self._server = new_server()
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Binds and begins; executors join later. Raises Unavailable or OSError if a port cannot be bound."""
        settings = self.settings
        self.service.add_to(self._server)
        health = Health(self.engine)
        health_pb2_grpc.add_HealthServicer_to_server(health.servicer, self._server)
        try:
            self.port = self._server.add_insecure_port(f"{settings.host}:{settings.port}")
        except RuntimeError:
            raise Unavailable(f"port {settings.port} on {settings.host} cannot be bound") from None
        await self._server.start()
        if settings.metrics_port is not None:
            address = {"host": settings.metrics_host, "port": settings.metrics_port}
            self.metrics_port = await self._stack.enter_async_context(exposition(self.view, **address))  # type: ignore[arg-type]
        self._begin(self.engine.run(), "engine")
        self._begin(self.discovery.run(), "discovery")
        self._begin(health.run(), "health")
        if settings.throughput_log:
            self._begin(log_throughput(self.view, interval_s=settings.throughput_log_interval_s), "throughput")

    async def stop(self, *, drain_timeout_s: float = 0.0) -> None:
        """Drains, then ends everything. Idempotent."""
        if not self.failed.done():
            await self.engine.drain(drain_timeout_s)
        for session in list(self.service.sessions):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await session.flushed()
            session.drop(Draining("the scheduler is shutting down"))
        await self._server.stop(1.0)
        for task in reversed(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
        self.recorder.close()

    def view(self) -> View:
        """The scheduler now."""
        return view_of(
            self.core.stats(),
            self.engine,
            clients=self.discovery.clients.values(),
            num_gateways_dropped=self.service.num_gateways_dropped,
        )

    def _begin(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """No task may end by itself: its error is the process's."""
        if task.cancelled() or self.failed.done():
            return
        error = task.exception() or Internal(f"{task.get_name()} ended")
        if not isinstance(error, DrumlineError):
            self.recorder.dump(f"{task.get_name()}: {type(error).__name__}: {error}")
        self.engine.fail_all(error if isinstance(error, DrumlineError) else Internal("the scheduler failed"))
        self.failed.set_result(error)


@contextlib.asynccontextmanager
async def running(process: SchedulerProcess) -> AsyncIterator[SchedulerProcess]:
    """Starts and, whatever happens, stops without a drain."""
    try:
        await process.start()
        yield process
    finally:
        await process.stop()


async def serve(settings: SchedulerSettings) -> None:
    """Until SIGTERM or SIGINT, then drains. Raises what stopped the engine."""
    process = SchedulerProcess(settings)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    drain_timeout_s = settings.drain_timeout_s
    try:
        await process.start()
        sys.stdout.write(f"READY scheduler {settings.host}:{process.port}\n")
        sys.stdout.flush()
        stopped: asyncio.Future[Any] = asyncio.ensure_future(stopping.wait())
        await asyncio.wait({stopped, cast(asyncio.Future[Any], process.failed)}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not process.failed.done():
            _LOG.info("draining for at most %g s", drain_timeout_s)
    finally:
        await process.stop(drain_timeout_s=drain_timeout_s)
    if process.failed.done():
        raise process.failed.result()
