"""The scheduler's end of one executor: dial, shake hands, stream plans, notice death, freezing and a failing device, come back.

`ExecutorClient` lives as long as an address is wanted; each of its sessions is an `ExecutorLink` with an executor id of its own.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
import grpc.aio

from drumline.errors import DrumlineError, ProtocolMismatch, StaleEpoch, Unavailable
from drumline.executor.v1.executor_pb2 import (
    GetCapabilitiesRequest,
    GetModelRequest,
    GetModelResponse,
    OpenSession,
    RunPlansRequest,
)
from drumline.executor.v1.executor_pb2_grpc import ExecutorStub
from drumline.rpc import error_of, open_channel
from drumline.version import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from scheduler_svc import grants, wire
from scheduler_svc.core.grant import grant_id_of
from scheduler_svc.core.types import Limits
from scheduler_svc.executor_health import check_well, until_unwell
from scheduler_svc.executor_link import ExecutorLink, LinkOwner
from scheduler_svc.fleet import Fleet
from scheduler_svc.ports import Clock

if TYPE_CHECKING:
    from drumline.executor.v1.executor_pb2_grpc import ExecutorAsyncStub

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 0.1
_EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Liveness:
    """How long to wait before an executor counts as lost, seconds; meanings as in `SchedulerSettings`."""

    connect_timeout_s: float = 5.0
    stall_timeout_s: float = 1.0
    probe_timeout_s: float = 1.5
    step_timeout_s: float = 120.0
    reconnect_max_s: float = 2.0


class ExecutorClient:
    """Keeps one address linked: `run` dials, serves the session to its end, and dials again until `retire` or a takeover."""

    def __init__(
        self, address: str, *, owner: LinkOwner, fleet: Fleet, clock: Clock, liveness: Liveness, limits: Limits | None = None
    ) -> None:
        """`limits`: settings that a grant depends on; none = the defaults."""
        self.address = address
        self._limits = limits or Limits()
        self.state = "connecting"
        """`connecting`, `ready`, `lost` (between two tries) or `superseded`."""
        self.reason = ""
        """Why the last try or session ended, for people."""
        self._owner = owner
        self._fleet = fleet
        self._clock = clock
        self._liveness = liveness
        self._retired = False
        self._jitter = random.Random()  # noqa: S311 - spreads reconnects, guards nothing

    def retire(self) -> None:
        """The address is no longer wanted: a session in progress goes on, but it is not dialled again after it."""
        self._retired = True

    async def run(self) -> None:
        """Until retired or superseded; cancelling it ends the session."""
        pause_s = _FIRST_PAUSE_S
        while not self._retired:
            started_ns = self._clock.now_ns()
            try:
                await self._session()
            except StaleEpoch as error:
                self.state, self.reason = "superseded", error.message
                _LOG.error("executor=%s superseded reason=%s", self.address, error.message)
                await self._owner.superseded(self.address, error)
                return
            except DrumlineError as error:
                if self.reason != error.message:
                    _LOG.warning("executor=%s away code=%s reason=%s", self.address, error.code, error.message)
                self.state, self.reason = "lost", error.message
            except Exception as error:
                # whatever one peer can make us stumble over must not end everybody else's sessions
                _LOG.exception("executor=%s away after a defect", self.address)
                self.state, self.reason = "lost", f"a defect of ours: {type(error).__name__}"
            if self._clock.now_ns() - started_ns > self._liveness.reconnect_max_s * 2e9:
                pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(pause_s * self._jitter.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, self._liveness.reconnect_max_s)

    async def _session(self) -> None:
        """One session from dial to end. Always raises: why it ended."""
        channel = open_channel(self.address)
        try:
            stub = ExecutorStub(channel)
            await check_well(channel, timeout_s=self._liveness.connect_timeout_s)
            link, model = await self._handshake(stub)
            call: Any = stub.RunPlans()  # type: ignore[call-arg]
            try:
                await self._open(call, link)
                await self._owner.joined(link, model)
                self.state, self.reason = "ready", ""
                await self._serve(channel, call, link)
            finally:
                call.cancel()
                self._fleet.release(link.executor_id)
        finally:
            await channel.close(None)

    async def _handshake(self, stub: "ExecutorAsyncStub") -> tuple[ExecutorLink, GetModelResponse | None]:
        """What the executor is, and the model if nobody has it yet."""
        timeout = self._liveness.connect_timeout_s
        caps = await _answer(stub.GetCapabilities(GetCapabilitiesRequest(), timeout=timeout))
        if not (caps.min_protocol_version <= PROTOCOL_VERSION and caps.protocol_version >= MIN_PROTOCOL_VERSION):
            raise ProtocolMismatch(
                f"executor speaks protocol {caps.min_protocol_version} to {caps.protocol_version}, "
                f"this scheduler {MIN_PROTOCOL_VERSION} to {PROTOCOL_VERSION}"
            )
        for name in ("block_size", "num_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "vocab_size"):
            if getattr(caps, name) < 1:
                raise ProtocolMismatch(f"executor declares {name} 0")
        model = await _answer(stub.GetModel(GetModelRequest(), timeout=timeout)) if self._fleet.model is None else None
        executor_id, epoch = self._fleet.claim(self.address, caps)
        link = ExecutorLink(self.address, executor_id=executor_id, session_epoch=epoch, capabilities=caps, clock=self._clock)
        return link, model

    async def _open(self, call: Any, link: ExecutorLink) -> None:
        """Takes the executor over for this session."""
        grant = grants.decide(link.executor_id, link.capabilities, limits=self._limits)
        opening = OpenSession(
            session_epoch=link.session_epoch,
            protocol_version=min(PROTOCOL_VERSION, link.capabilities.protocol_version),
            model_digest=link.capabilities.model_digest,
            grant_id=grant_id_of(link.executor_id),
            ragged_granted=grant.granted,
            ragged_reason=grant.reason,
        )
        try:
            async with asyncio.timeout(self._liveness.connect_timeout_s):
                await call.write(RunPlansRequest(open=opening))
                response = await call.read()
        except TimeoutError:
            raise Unavailable("the executor did not open the session in time") from None
        except (grpc.RpcError, asyncio.InvalidStateError):
            raise await _end_of(call) from None
        if response is _EOF:
            raise await _end_of(call)
        if response.WhichOneof("message") != "opened" or response.opened.session_epoch != link.session_epoch:
            raise ProtocolMismatch("the executor did not answer `open` with `opened`")
        grants.announce(self.address, grant, limits=self._limits)
        info = wire.executor_info(link.executor_id, link.capabilities)
        grants.announce_advance(self.address, info, grant, limits=self._limits)

    async def _serve(self, channel: grpc.aio.Channel, call: Any, link: ExecutorLink) -> None:
        """Plans out, results in, until something ends. Raises why; the owner hears `lost` in any case."""
        tasks = [
            asyncio.create_task(self._read(call, link)),
            asyncio.create_task(_write(call, link)),
            asyncio.create_task(self._watch(ExecutorStub(channel), link)),
            asyncio.create_task(_stay_well(channel)),
            asyncio.create_task(_closed(link)),
        ]
        reason = "the scheduler is stopping"
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = next(task.exception() for task in tasks if task in done)
            reason = str(error)
            raise error or Unavailable("the plan stream ended")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._owner.lost(link, reason)

    async def _read(self, call: Any, link: ExecutorLink) -> None:
        """Hands results to the owner in order. Raises how the stream ended."""
        while True:
            try:
                response = await call.read()
            except grpc.RpcError as failure:
                raise error_of(failure) from None
            if response is _EOF:
                raise await _end_of(call)
            link.heard_ns = self._clock.now_ns()
            kind = response.WhichOneof("message")
            if kind == "result":
                await self._hand_over(link, response.result)
            elif kind == "draining":
                link.draining = True
                await self._owner.executor_draining(link)

    async def _hand_over(self, link: ExecutorLink, message: Any) -> None:
        if message.session_epoch != link.session_epoch:
            raise StaleEpoch(f"result of step {message.step_id} carries another session's epoch")
        try:
            result = wire.result_of(message)
        except (ValueError, KeyError) as error:
            raise Unavailable(f"result of step {message.step_id} cannot be read: {error}") from None
        await self._owner.result(link, result, raw=message.SerializeToString(), times=wire.times_of(message))

    async def _watch(self, stub: "ExecutorAsyncStub", link: ExecutorLink) -> None:
        """Probes a silent executor; raises Unavailable once it is dead, frozen or stuck."""
        lively, known = self._liveness, link.capabilities
        while True:
            await asyncio.sleep(lively.stall_timeout_s / 4)
            now_ns = self._clock.now_ns()
            oldest_ns = next(iter(link.in_flight.values()), now_ns)
            if now_ns - max(oldest_ns, 0) > lively.step_timeout_s * 1e9:
                raise Unavailable(f"no step finished for {lively.step_timeout_s:g} s")
            if now_ns - link.heard_ns < lively.stall_timeout_s * 1e9:
                continue
            caps = await _answer(stub.GetCapabilities(GetCapabilitiesRequest(), timeout=lively.probe_timeout_s))
            if caps.instance_id != link.capabilities.instance_id:
                raise Unavailable("another executor process answers at this address")
            if late := grants.late_change(known, caps):
                _LOG.warning("executor=%s %s", self.address, late)
                known = caps
            link.heard_ns = self._clock.now_ns()


async def _answer(call: Awaitable[T]) -> T:
    """The answer of a unary call, or the error it stands for."""
    try:
        return await call
    except grpc.RpcError as failure:
        raise error_of(failure) from None


async def _write(call: Any, link: ExecutorLink) -> None:
    while True:
        message = await link.next_message()
        try:
            await call.write(message)
        except (grpc.RpcError, asyncio.InvalidStateError):
            raise await _end_of(call) from None


async def _stay_well(channel: grpc.aio.Channel) -> None:
    """Raises once the executor says that it is unwell. That nobody answers is not its business: the plan stream knows better."""
    await until_unwell(channel)
    await asyncio.get_running_loop().create_future()


async def _closed(link: ExecutorLink) -> None:
    raise Unavailable(await link.failed())


async def _end_of(call: Any) -> DrumlineError:
    """Why a stream is over, in the words of whoever ended it."""
    with contextlib.suppress(asyncio.CancelledError):
        code, details = await call.code(), await call.details()
        if code is grpc.StatusCode.OK:
            return Unavailable("the executor ended the plan stream")
        trailers = await call.trailing_metadata()
        return error_of(grpc.aio.AioRpcError(code, (), trailers, details))  # type: ignore[call-arg,arg-type]
    return Unavailable("the plan stream was cancelled")
