"""The gRPC face of the scheduler: gateways' streams, the relayed model, status, health; and the process around the engine."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from grpc_health.v1 import health, health_pb2

from drumline import limits
from drumline.errors import Cancelled, DrumlineError, Internal, InvalidRequest, ProtocolMismatch, Unavailable
from drumline.rpc import abort
from drumline.scheduler.v1 import scheduler_pb2 as pb
from drumline.scheduler.v1.scheduler_pb2_grpc import SchedulerServicer, add_SchedulerServicer_to_server
from drumline.version import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION, SOFTWARE_VERSION
from scheduler_svc.engine import Engine
from scheduler_svc.routing import GatewaySession
from scheduler_svc.view import ExecutorView, View

_EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]
_LOG = logging.getLogger(__name__)
SERVICE_NAME: Final = "drumline.scheduler.v1.Scheduler"
_SHARE_WAITED: Final = 0.8
"""Of a caller's deadline: the rest is for the answer, so that nobody takes a scheduler without executors for a dead one."""


class Service(SchedulerServicer):
    """Scheduler RPCs over one engine. `view` is asked at each GetStatus."""

    def __init__(self, engine: Engine, *, view: Callable[[], View], max_backlog: int = limits.MAX_GATEWAY_BACKLOG_MESSAGES) -> None:
        self.num_gateways_dropped = 0
        self.sessions: set[GatewaySession] = set()
        self._engine = engine
        self._view = view
        self._max_backlog = max_backlog

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the RPCs; before the server starts."""
        add_SchedulerServicer_to_server(self, server)

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:  # noqa: N802
        """See the proto. Waits for the first executor while the caller does: whoever asks again and again instead learns late."""
        left_s = context.time_remaining()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if left_s is None else _SHARE_WAITED * left_s):
                await self._engine.fleet.known.wait()
        if self._engine.fleet.model is None:
            await abort(context, Unavailable("no_executor: no executor has joined yet", retry_after_s=1))
        return pb.GetModelResponse(model=self._engine.fleet.model)

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:  # noqa: N802
        """See the proto."""
        return status_of(self._view())

    async def Serve(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        """One gateway, from hello to the end of its stream, whichever side ends it."""
        session = await self._greet(context)
        self.sessions.add(session)
        work = (self._read(session, context), _write(session, context), session.dropped())
        tasks = [asyncio.create_task(one) for one in work]
        error: DrumlineError = Cancelled("the gateway's stream ended")
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            failure = next((task.exception() for task in tasks if task in done and task.exception() is not None), None)
            error = error if failure is None else _known(failure, session)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.sessions.discard(session)
            await self._engine.leave(session, session.error or error)
        if not isinstance(error, Cancelled):
            self.num_gateways_dropped += 1
            _LOG.warning("gateway=%s cut code=%s reason=%s", session.gateway_id, error.code, error.message)
            await abort(context, error)

    async def _greet(self, context: Any) -> GatewaySession:
        first = await context.read()
        if first is _EOF or first.WhichOneof("message") != "hello":
            await abort(context, InvalidRequest("the first message of a session must be `hello`"))
        version = first.hello.protocol_version
        if not MIN_PROTOCOL_VERSION <= version <= PROTOCOL_VERSION:
            text = f"gateway speaks protocol {version}, this scheduler {MIN_PROTOCOL_VERSION} to {PROTOCOL_VERSION}"
            await abort(context, ProtocolMismatch(text))
        session = GatewaySession(first.hello.gateway_id or "unnamed", max_backlog=self._max_backlog)
        welcome = pb.Welcome(protocol_version=PROTOCOL_VERSION, model_digest=self._engine.fleet.model_digest)
        session.push(pb.ServeResponse(welcome=welcome))
        _LOG.info("gateway=%s connected", session.gateway_id)
        return session

    async def _read(self, session: GatewaySession, context: Any) -> None:
        """Inputs in order; one at a time, so that a gateway that floods is held back by its own stream."""
        while True:
            message = await context.read()
            if message is _EOF:
                return
            kind = message.WhichOneof("message")
            if kind == "submit":
                _fill_in_seeds(message.submit)
                await self._engine.submit(session, message.submit)
            elif kind == "abort":
                await self._engine.abort(session, list(message.abort.handles))
            else:
                raise InvalidRequest("a session has one `hello`, then submits and aborts")


def _known(failure: BaseException, session: GatewaySession) -> DrumlineError:
    """A session's failure as an error of ours; what nobody foresaw is logged, since it must not end as if all were well."""
    if isinstance(failure, DrumlineError):
        return failure
    if isinstance(failure, DecodeError):
        return InvalidRequest("a message of the session cannot be decoded")
    if isinstance(failure, asyncio.InvalidStateError | grpc.RpcError):
        return Cancelled("the gateway's stream broke")
    _LOG.error("gateway=%s session failed", session.gateway_id, exc_info=failure)
    return Internal("the session failed")


async def _write(session: GatewaySession, context: Any) -> None:
    while True:
        await context.write(await session.next())


def _fill_in_seeds(submit: pb.Submit) -> None:
    """An unseeded sequence gets a seed here, before it is recorded, so that it can be resumed and replayed."""
    for sequence in submit.sequences:
        if not sequence.sampling.HasField("seed"):
            sequence.sampling.seed = secrets.randbits(64)


def status_of(view: View) -> pb.GetStatusResponse:
    """A View as GetStatus answers it."""
    return pb.GetStatusResponse(
        num_waiting=view.num_waiting,
        num_running=view.num_resident,
        num_scheduled=view.num_scheduled,
        num_waiting_tokens=view.num_waiting_tokens,
        num_preemptions=view.num_preemptions,
        num_generated_tokens=view.num_generated_tokens,
        num_prompt_tokens=view.num_prompt_tokens,
        prefix_queries=view.prefix_queries,
        prefix_hits=view.prefix_hits,
        executors=[_executor_status(one) for one in view.executors],
        software_version=SOFTWARE_VERSION,
        draining=view.draining,
        admission=view.admission,
    )


def _executor_status(one: ExecutorView) -> pb.ExecutorStatus:
    return pb.ExecutorStatus(
        address=one.address,
        instance_id=one.instance_id,
        state=one.state,
        num_resident=one.num_resident,
        num_scheduled=one.num_scheduled,
        plans_in_flight=one.plans_in_flight,
        num_blocks=one.num_blocks,
        num_blocks_used=one.num_blocks_used,
        num_blocks_cached=one.num_blocks_cached,
        idle_fraction=one.accounts.idle_fraction(),
        ragged_granted=one.ragged_granted,
        ragged_reason=one.ragged_reason,
        device=one.device,
        precision=one.precision,
        kv_cache_dtype=one.kv_cache_dtype,
        layout=one.layout,
        grant_id=one.grant_id,
    )


class Health:
    """The standard health service: "" is the process, `SERVICE_NAME` is readiness (an executor that takes rows, and no drain)."""

    def __init__(self, engine: Engine) -> None:
        self.servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._engine = engine

    async def run(self) -> None:
        """Keeps the answer true. Until cancelled."""
        was: bool | None = None
        await self.servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        while True:
            is_ready = self._engine.is_ready()
            if is_ready is not was:
                was = is_ready
                status = health_pb2.HealthCheckResponse.SERVING if is_ready else health_pb2.HealthCheckResponse.NOT_SERVING
                await self.servicer.set(SERVICE_NAME, status)
            await asyncio.sleep(0.1)
