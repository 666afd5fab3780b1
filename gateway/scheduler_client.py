"""The gateway's end of the scheduler link: one `Serve` stream for all requests, opened again whenever it breaks.

    submit -> Submit ─┐                     ┌─ Admission  -> the waiting `submit`
    withdraw -> Abort ┴─ writer ═ stream ═ reader ─ StepTokens -> LiveRequest.push, by handle

When the stream breaks, every live request fails at once with Unavailable: the scheduler has dropped its sequences.
"""

import asyncio
import contextlib
import itertools
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import grpc
import grpc.aio

from drumline import rpc
from drumline.errors import DrumlineError, Overloaded, ProtocolMismatch, Unavailable, from_code
from drumline.scheduler.v1 import scheduler_pb2 as pb
from drumline.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from drumline.version import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from gateway.live import LiveRequest
from gateway.sequences import ModelInfo, SchedulerStatus, SequenceSpec
from gateway.wire import model_info_of, news_of, status_of, submit_of

_log = logging.getLogger(__name__)
_MAX_UNSENT_SUBMITS: Final = 1024
_CALL_TIMEOUT_S: Final = 5.0
_ADMISSION_TIMEOUT_S: Final = 10.0
"""A scheduler answers a Submit at once, whether there is room or not; silence means that it is stuck."""
_FIRST_PAUSE_S: Final = 0.05
_STATUS_TIMEOUT_S: Final = 1.0
_STALE_STATUS_S: Final = 1.5
"""A scheduler that was silent for this long beyond the polling interval is not ready."""
_LOST: Final = "the connection to the scheduler was lost"


class SchedulerClient:
    """Owns the channel and its tasks; used from one event loop.

    Attributes:
        connected: a stream is open and welcomed.
        status: the scheduler's last answer about itself, or None.
        num_late: news for sequences that were withdrawn meanwhile; counted and dropped.
    """

    def __init__(
        self,
        address: str,
        *,
        on_model: Callable[[ModelInfo], Awaitable[None]],
        reconnect_max_s: float,
        status_interval_s: float,
    ) -> None:
        self.connected = False
        self.status: SchedulerStatus | None = None
        self.num_late = 0
        self._address = address
        self._on_model = on_model
        self._reconnect_max_s = reconnect_max_s
        self._status_interval_s = status_interval_s
        self._gateway_id = f"gw-{uuid.uuid4().hex[:12]}"
        self._digest = ""
        self._handles = itertools.count(1)
        self._live: dict[int, tuple[LiveRequest, int]] = {}
        self._admissions: dict[int, asyncio.Future[None]] = {}
        self._outbox: _Outbox | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._channel: grpc.aio.Channel | None = None
        self._stub: pb_grpc.SchedulerAsyncStub | None = None
        self._welcomed = asyncio.Event()
        self._trouble = ""
        """The last failure that was logged: a scheduler that waits for an executor says the same again and again."""

    async def start(self) -> None:
        """Starts dialling; returns at once."""
        self._channel = rpc.open_channel(self._address)
        stub = self._stub = pb_grpc.SchedulerStub(self._channel)
        self._tasks = [asyncio.create_task(self._keep_connected(stub)), asyncio.create_task(self._poll_status())]

    async def stop(self) -> None:
        """Ends the session; whatever still lives fails with Unavailable."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close(None)

    def is_ready(self) -> bool:
        """Whether the scheduler answers now and has an executor that takes rows."""
        fresh = self.status is not None and time.monotonic() - self.status.at_s < _STALE_STATUS_S + self._status_interval_s
        return self.connected and fresh and self.status is not None and self.status.num_ready() > 0

    async def submit(self, specs: Sequence[SequenceSpec]) -> LiveRequest:
        """Queues all `specs` or none. Raises the scheduler's refusal, or Unavailable; cancelling it withdraws them."""
        if not self.connected or self._outbox is None:
            raise Unavailable("the scheduler is not connected", retry_after_s=1)
        handles = [next(self._handles) for _ in specs]
        live = LiveRequest(handles, withdraw=self._withdraw)
        self._outbox.submit(submit_of(handles, specs))
        self._live.update((handle, (live, index)) for index, handle in enumerate(handles))
        admitted = self._admissions[handles[0]] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_ADMISSION_TIMEOUT_S):
                await admitted
        except TimeoutError:
            live.close()
            raise Unavailable("the scheduler does not answer", retry_after_s=1) from None
        except BaseException:
            live.close()
            raise
        finally:
            self._admissions.pop(handles[0], None)
        return live

    def _withdraw(self, handles: Sequence[int]) -> None:
        known = [handle for handle in handles if self._live.pop(handle, None) is not None]
        if known and self._outbox is not None:
            self._outbox.abort(known)

    async def _keep_connected(self, stub: "pb_grpc.SchedulerAsyncStub") -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._load_model(stub)
                pause_s = _FIRST_PAUSE_S
                await self._session(stub)
                _log.warning("the scheduler ended the session")
            except grpc.RpcError as failure:
                self._warn(rpc.error_of(failure).message)
            except DrumlineError as error:
                self._warn(error.message)
            except Exception:
                _log.exception("scheduler link")
            finally:
                self._lose_everything()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._reconnect_max_s)

    def _warn(self, trouble: str) -> None:
        if trouble != self._trouble:
            _log.warning("scheduler link: %s", trouble)
        self._trouble = trouble

    async def _load_model(self, stub: "pb_grpc.SchedulerAsyncStub") -> None:
        info = model_info_of(await stub.GetModel(pb.GetModelRequest(), timeout=_CALL_TIMEOUT_S))
        if info.digest != self._digest:
            await self._on_model(info)
            self._digest = info.digest
            _log.info("model %s, context %d tokens", info.name, info.max_model_len)

    async def _session(self, stub: "pb_grpc.SchedulerAsyncStub") -> None:
        outbox = self._outbox = _Outbox()
        # The stubs' types know only the way that takes an iterator; writing by hand lets the writer be ended for certain.
        call = cast(Any, stub.Serve)()
        writer = asyncio.create_task(outbox.write_to(call, gateway_id=self._gateway_id))
        try:
            async for response in call:
                kind = response.WhichOneof("message")
                if kind == "tokens":
                    self._deliver(response.tokens)
                elif kind == "admission":
                    self._admit(response.admission)
                elif kind == "welcome":
                    self._welcome(response.welcome)
        finally:
            writer.cancel()
            call.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def _welcome(self, welcome: pb.Welcome) -> None:
        if not MIN_PROTOCOL_VERSION <= welcome.protocol_version <= PROTOCOL_VERSION:
            raise ProtocolMismatch(f"the scheduler speaks wire protocol {welcome.protocol_version}, we speak {PROTOCOL_VERSION}")
        self.connected, self._trouble = True, ""
        self._welcomed.set()
        _log.info("connected to the scheduler")

    def _deliver(self, step: pb.StepTokens) -> None:
        for handle, news in news_of(step):
            place = self._live.get(handle)
            if place is None:
                self.num_late += 1
                continue
            live, index = place
            if isinstance(news, DrumlineError):
                del self._live[handle]
                live.fail(news)
                continue
            if news.finish_reason is not None:
                del self._live[handle]
            news.index = index
            live.push(news)

    def _admit(self, admission: pb.Admission) -> None:
        waiting = self._admissions.get(admission.handles[0]) if admission.handles else None
        if waiting is None or waiting.done():
            return
        if not admission.HasField("refused"):
            waiting.set_result(None)
            return
        for handle in admission.handles:
            self._live.pop(handle, None)
        refused = admission.refused
        waiting.set_exception(from_code(refused.code, refused.message, retry_after_s=admission.retry_after_s or None))

    def _lose_everything(self) -> None:
        self.connected = False
        self._outbox = None
        for waiting in self._admissions.values():
            if not waiting.done():
                waiting.set_exception(Unavailable(_LOST, retry_after_s=1))
        requests = {id(live): live for live, _ in self._live.values()}
        self._live.clear()
        for live in requests.values():
            live.fail(Unavailable(_LOST, retry_after_s=1))

    async def refresh_status(self) -> SchedulerStatus:
        """The scheduler's word about itself as of now. Raises Unavailable when it does not answer."""
        if self._stub is None:
            raise Unavailable("the gateway has not started yet", retry_after_s=1)
        try:
            response = await self._stub.GetStatus(pb.GetStatusRequest(), timeout=_STATUS_TIMEOUT_S)
        except grpc.RpcError:
            raise Unavailable("the scheduler does not answer", retry_after_s=1) from None
        self.status = status_of(response, at_s=time.monotonic())
        return self.status

    async def _poll_status(self) -> None:
        """At intervals, and when a session begins: what was heard before it says nothing of the executors that it has."""
        while True:
            with contextlib.suppress(Unavailable):
                await self.refresh_status()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._status_interval_s):
                    await self._welcomed.wait()
            self._welcomed.clear()


class _Outbox:
    """What one stream still has to send. A new stream gets a new one, so that a dead stream's writer takes nothing from it."""

    def __init__(self) -> None:
        self._submits: deque[pb.ServeRequest] = deque()
        self._aborts: list[int] = []
        self._filled = asyncio.Event()

    def submit(self, request: pb.ServeRequest) -> None:
        """Raises Overloaded when the stream does not keep up."""
        if len(self._submits) >= _MAX_UNSENT_SUBMITS:
            raise Overloaded("too many requests wait for the scheduler", retry_after_s=1)
        self._submits.append(request)
        self._filled.set()

    def abort(self, handles: Sequence[int]) -> None:
        """Bounded by the live sequences: each is aborted at most once."""
        self._aborts += handles
        self._filled.set()

    async def write_to(self, call: Any, *, gateway_id: str) -> None:
        """Hello, then everything in an order in which no abort overtakes its own submit. Ends when the stream breaks."""
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            await call.write(pb.ServeRequest(hello=pb.Hello(protocol_version=PROTOCOL_VERSION, gateway_id=gateway_id)))
            while True:
                await self._filled.wait()
                self._filled.clear()
                aborts, self._aborts = self._aborts, []
                while self._submits:
                    await call.write(self._submits.popleft())
                if aborts:
                    await call.write(pb.ServeRequest(abort=pb.Abort(handles=aborts)))
