"""The executor's gRPC server: capabilities, model, and the plan stream with its session rules. See `executor.proto`.

One session owns the executor. A newer epoch takes it over at once; a session that ends, however it ends, leaves nothing behind, and
the executor waits for the next one.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from drumline import limits, rpc
from drumline.errors import Draining, DrumlineError, Internal, PlanRejected, StaleEpoch, StaleGrant
from drumline.executor.v1 import executor_pb2 as pb
from drumline.executor.v1.executor_pb2_grpc import ExecutorServicer
from executor_svc import wire
from executor_svc.backends.base import Backend, BackendInfo, ModelInfo
from executor_svc.plan import StepResult
from executor_svc.session import DrainNotice, Opening, Session
from executor_svc.slots import SlotLimits
from executor_svc.worker import Job, Worker

log = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]


class ExecutorService(ExecutorServicer):
    """Serves one backend through one worker. Lives on the event loop."""

    def __init__(self, backend: Backend, worker: Worker) -> None:
        self._worker = worker
        self._model = backend.model
        self._info = backend.info
        self._drafter = backend.drafter
        self._instance_id = secrets.token_hex(8)
        self._session: Session | None = None
        self._newest_epoch = 0
        self._draining = False

    @property
    def is_busy(self) -> bool:
        """A session has live sequences or plans on the way."""
        return self._session is not None and self._session.is_busy

    def start_draining(self, *, grace_s: float) -> None:
        """Nothing new may open; the session's scheduler is told how long what lives here may go on."""
        self._draining = True
        if self._session:
            self._session.outbox.put_nowait(DrainNotice(grace_ms=int(grace_s * 1000)))

    def end_session(self, error: DrumlineError) -> None:
        """Ends the session, if there is one, by name."""
        if self._session:
            self._session.end(error)

    async def GetCapabilities(self, request: pb.GetCapabilitiesRequest, context: Context) -> pb.GetCapabilitiesResponse:  # noqa: N802
        """What this executor is and can do."""
        return wire.capabilities(self._model, self._info, instance_id=self._instance_id)

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:  # noqa: N802
        """Tokenizer, template and special ids."""
        return wire.model_to_wire(self._model)

    async def RunPlans(  # type: ignore[override]  # noqa: N802 - a handler that writes to its context returns nothing
        self, request_iterator: AsyncIterator[pb.RunPlansRequest], context: Context
    ) -> None:
        """One session from open to end; an error ends the stream by name."""
        try:
            session = self._open(await anext(request_iterator, None))
            try:
                await self._converse(session, request_iterator, context)
            finally:
                session.end()
                if self._session is session:
                    self._session = None
        except DrumlineError as error:
            log.info("session ended: %s: %s", error.code, error.message)
            await rpc.abort(context, error)

    def _open(self, request: pb.RunPlansRequest | None) -> Session:
        """Makes the caller the owner, or raises the named reason why not."""
        if request is None or request.WhichOneof("message") != "open":
            raise PlanRejected("the first message of RunPlans must be `open`")
        if self._draining:
            raise Draining("this executor is shutting down")
        told = request.open
        opening = Opening(told.session_epoch, told.protocol_version, told.model_digest, told.grant_id, told.ragged_granted)
        opening.check(model_digest=self._model.model_digest, newest_epoch=self._newest_epoch)
        if told.ragged_granted and not self._info.ragged_granted:
            raise StaleGrant(f"ragged cohorts were granted, but this executor refuses them: {self._info.ragged_reason}")
        self.end_session(StaleEpoch(f"session {self._newest_epoch} was taken over by {opening.session_epoch}"))
        self._newest_epoch = opening.session_epoch
        self._session = Session(opening, slot_limits(self._model, self._info), drafter=self._drafter)
        log.info("session %d opened, ragged cohorts %s: %s", opening.session_epoch, told.ragged_granted, told.ragged_reason)
        return self._session

    async def _converse(self, session: Session, requests: AsyncIterator[pb.RunPlansRequest], context: Context) -> None:
        await context.write(pb.RunPlansResponse(opened=pb.SessionOpened(session_epoch=session.opening.session_epoch)))
        tasks = [asyncio.create_task(self._read(session, requests)), asyncio.create_task(self._write(session, context))]
        try:
            await session.wait_over()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, session: Session, requests: AsyncIterator[pb.RunPlansRequest]) -> None:
        """Plans from the stream to the worker, until the scheduler has said all and heard all."""
        try:
            async for request in requests:
                arrived_ns = time.monotonic_ns()
                if request.WhichOneof("message") != "plan":
                    raise PlanRejected("after `open`, every message of RunPlans must be `plan`")
                info = self._info
                plan = wire.plan_of(request.plan, max_num_seqs=info.max_num_seqs, layouts=info.layouts, mtp_depth=info.mtp_depth)
                session.accept(step_id=plan.step_id, session_epoch=plan.session_epoch, grant_id=plan.grant_id)
                await self._worker.submit(Job(session.work, plan, arrived_ns))
                await session.wait_held_below(limits.MAX_PLANS_QUEUED)
            await session.wait_held_below(1)
            session.end()
        except DrumlineError as error:
            session.end(error)
        except Exception as error:
            log.exception("the plan stream failed")
            session.end(Internal(f"the plan stream failed: {type(error).__name__}"))

    async def _write(self, session: Session, context: Context) -> None:
        """Results and notices to the stream, in order."""
        while True:
            news = await session.outbox.get()
            try:
                message = _message_of(news)
            except Exception as error:
                log.exception("a result cannot be told")
                session.end(Internal(f"a result cannot be told: {type(error).__name__}"))
                return
            try:
                await context.write(message)
            except Exception:
                log.info("session %d: the scheduler is gone", session.opening.session_epoch)
                session.end()
                return
            if isinstance(news, StepResult):
                session.sent()


def _message_of(news: StepResult | DrainNotice) -> pb.RunPlansResponse:
    if isinstance(news, DrainNotice):
        return pb.RunPlansResponse(draining=pb.Draining(grace_ms=news.grace_ms))
    return pb.RunPlansResponse(result=wire.result_to_wire(news))


def slot_limits(model: ModelInfo, info: BackendInfo) -> SlotLimits:
    """The bounds of a session's state on this backend."""
    return SlotLimits(
        num_slots=info.max_num_seqs,
        max_model_len=model.max_model_len,
        max_num_batched_tokens=info.max_num_batched_tokens,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids,
    )
