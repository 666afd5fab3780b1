"""The engine: consumes inputs one at a time, feeds them to the core, and keeps every executor's plans in flight.

Everything that changes the core passes through one bounded inbox, is recorded, then applied; a recording can therefore repeat
a session. Only `Engine._turn` touches the core. The step is three calls on one screen: see `_feed` and `_on_result`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from drumline.errors import Draining, DrumlineError, InvalidRequest, ModelMismatch, PlanRejected, StaleEpoch, Unavailable
from scheduler_svc import wire
from scheduler_svc.accounts import StepAccounts
from scheduler_svc.core.errors import ResultMismatch
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import Outputs, StepResult
from scheduler_svc.executor_link import ExecutorLink
from scheduler_svc.fleet import Fleet
from scheduler_svc.ports import Clock, Recorder
from scheduler_svc.routing import GatewaySession, Routes

MAX_INBOX: Final = 1024
"""Inputs that wait for the core; producers wait behind it."""
TICK_INTERVAL_S: Final = 0.05
"""How often time passes for the core when nothing else happens: deadlines are at most this late."""
_LOG = logging.getLogger(__name__)


class Engine:
    """Owns the core and everything keyed by its ids. All methods run on one event loop; see each group for who may call.

    Attributes:
        draining: nothing new is taken.
        fleet: what all executors have in common.
        links: executors in the books, by executor id.
        accounts: step accounts by executor address; they outlive links, so that counters never fall.
    """

    def __init__(
        self, core: Scheduler, *, fleet: Fleet, recorder: Recorder, clock: Clock, plans_in_flight: int, default_timeout_ms: int
    ) -> None:
        self.draining = False
        self.fleet = fleet
        self.links: dict[int, ExecutorLink] = {}
        self.routes = Routes()
        self.accounts: dict[str, StepAccounts] = {}
        self.num_lost = 0
        self.num_admitted = 0
        self.num_late_results = 0
        self._core = core
        self._recorder = recorder
        self._clock = clock
        self._plans_in_flight = plans_in_flight
        self._default_timeout_ms = default_timeout_ms
        self._next_key = 1
        self._last_tick_ns = 0
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Callable[[], None]] = deque()
        self._failure: asyncio.Future[None] = self._loop.create_future()

    def is_ready(self) -> bool:
        """Whether new sequences can be taken: an executor takes rows, and nothing is shutting down."""
        return not self.draining and any(not link.draining for link in self.links.values())

    # The loop.

    async def run(self) -> None:
        """Until cancelled. Whatever it raises is a defect, or StaleEpoch after a takeover: the caller stops the service."""
        timer = asyncio.create_task(self._pass_time())
        try:
            await self._failure
        finally:
            timer.cancel()

    async def _put(self, apply: Callable[[], None]) -> None:
        """Queues one input for the next turn of the loop; waits while the inbox is full."""
        while len(self._inbox) >= MAX_INBOX:  # noqa: ASYNC110 - the next turn empties it
            await asyncio.sleep(0)
        self._inbox.append(apply)
        if len(self._inbox) == 1:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Applies what has come, one input at a time, then keeps executors fed. A plain callback: a task's wake-up costs more."""
        if self._failure.done():
            return
        try:
            while self._inbox:
                self._inbox.popleft()()
            for link in list(self.links.values()):
                self._feed(link)
        except Exception as error:
            self._failure.set_exception(error)

    def _feed(self, link: ExecutorLink) -> None:
        """Plans for one executor, until its in-flight bound is reached or nothing can run."""
        while len(link.in_flight) < self._plans_in_flight:
            self._tick(link.executor_id)
            plan = self._core.schedule(link.executor_id)
            if plan is None:
                if not link.in_flight:
                    self.accounts[link.address].workless()
                return
            raw = link.submit(plan)
            self._recorder.plan(link.executor_id, raw)
            self.accounts[link.address].submitted(self._clock.now_ns())

    def _on_result(self, link: ExecutorLink, result: StepResult, *, raw: bytes, times: wire.StepTimes) -> None:
        if link.executor_id not in self.links:
            self.num_late_results += 1  # said after it was lost
            return
        self._recorder.result(link.executor_id, raw)
        try:
            sent_ns = link.returned(result.step_id)
            outputs = self._core.update(link.executor_id, result)
        except (ResultMismatch, PlanRejected) as error:
            self._recorder.dump(f"result_mismatch executor={link.address}: {error}")
            link.close(f"result mismatch: {error}")
            self._remove(link, f"result mismatch: {error}")
            return
        self.accounts[link.address].answered(self._clock.now_ns(), sent_ns=sent_ns, times=times)
        self._deliver(outputs, source=link.executor_id)

    def _tick(self, executor_id: int) -> None:
        now_ns = self._clock.now_ns()
        self._last_tick_ns = now_ns
        self._recorder.tick(executor_id, now_ns)
        self._deliver(self._core.tick(now_ns))

    def _deliver(self, outputs: Outputs, *, source: int = 0) -> None:
        self.routes.deliver(outputs, _encode, source=source)

    async def _pass_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_INTERVAL_S)
            if len(self.routes) and self._clock.now_ns() - self._last_tick_ns > TICK_INTERVAL_S * 1e9:
                await self._put(partial(self._tick, 0))

    # From gateways.

    async def submit(self, session: GatewaySession, submit: Any) -> None:
        """Checks a Submit (its seeds filled in, it is not changed any more) and queues it; the session gets its Admission."""
        handles = [sequence.handle for sequence in submit.sequences]
        try:
            if not self.fleet.is_known:
                raise Unavailable("no_executor: no executor has joined yet", retry_after_s=1)
            wire.check_submit(submit, vocab_size=self.fleet.vocab_size, max_model_len=self.fleet.max_model_len)
        except DrumlineError as error:
            session.push(wire.admission(handles, wire.refusal_of(error)))
            return
        await self._put(partial(self._on_arrival, session, submit, handles))

    async def abort(self, session: GatewaySession, handles: Sequence[int]) -> None:
        """Withdraws sequences of this gateway; unknown handles are counted and dropped."""
        await self._put(partial(self._on_abort, session, handles))

    async def leave(self, session: GatewaySession, error: DrumlineError) -> None:
        """The gateway's stream is over: its sequences are withdrawn."""
        session.drop(error)
        await self._put(partial(self._on_leave, session))

    def _on_arrival(self, session: GatewaySession, submit: Any, handles: list[int]) -> None:
        if session.error is not None:
            return
        try:
            self._check_open(session, handles)
        except DrumlineError as error:
            session.push(wire.admission(handles, wire.refusal_of(error)))
            return
        first_key, now_ns = self._next_key, self._clock.now_ns()
        self._next_key += len(handles)
        self._recorder.arrival(first_key, now_ns, self._default_timeout_ms, submit.SerializeToString(deterministic=True))
        requests = wire.requests_of(submit, first_key=first_key, arrival_ns=now_ns, default_timeout_ms=self._default_timeout_ms)
        refusal = self._core.add_requests(requests)
        if refusal is None:
            self.num_admitted += len(handles)
            self.routes.add(session, first_key=first_key, handles=handles)
        session.push(wire.admission(handles, refusal))

    def _check_open(self, session: GatewaySession, handles: Sequence[int]) -> None:
        if self.draining:
            raise Draining("the scheduler is shutting down", retry_after_s=5)
        if not self.is_ready():
            raise Unavailable("no_executor: no executor is ready", retry_after_s=1)
        taken = session.keys.keys() & set(handles)
        if taken:
            raise InvalidRequest(f"handle {min(taken)} is already in use", param="handle")

    def _on_abort(self, session: GatewaySession, handles: Sequence[int]) -> None:
        keys = self.routes.keys_of(session, handles)
        if keys:
            self._recorder.abort(keys)
            self._deliver(self._core.abort(keys))
            self.routes.remove(keys)

    def _on_leave(self, session: GatewaySession) -> None:
        self._on_abort(session, list(session.keys))

    async def drain(self, timeout_s: float) -> None:
        """Takes nothing new and waits for what runs; what is left after `timeout_s` ends with `draining`."""
        self.draining = True
        give_up_ns = self._clock.now_ns() + int(timeout_s * 1e9)
        while len(self.routes) and self._clock.now_ns() < give_up_ns:  # noqa: ASYNC110 - once in a process's life
            await asyncio.sleep(0.02)
        self.fail_all(Draining("the scheduler shut down before the sequence was done"))

    def fail_all(self, error: DrumlineError) -> None:
        """Ends every live sequence towards its gateway. Only for shutting down: the core is not told."""
        self.routes.fail_all(lambda handles: wire.ended(handles, error))

    # From executor clients: a LinkOwner.

    async def joined(self, link: ExecutorLink, model: Any) -> None:
        """See `LinkOwner`."""
        await self._put(partial(self._on_joined, link, model))

    async def result(self, link: ExecutorLink, result: StepResult, *, raw: bytes, times: wire.StepTimes) -> None:
        """See `LinkOwner`. Applied at once unless others wait before it: another turn of the loop costs as much as the core."""
        apply = partial(self._on_result, link, result, raw=raw, times=times)
        if self._inbox:
            await self._put(apply)
        else:
            self._inbox.append(apply)
            self._turn()

    async def executor_draining(self, link: ExecutorLink) -> None:
        """See `LinkOwner`."""
        await self._put(partial(self._on_drain, link))

    async def lost(self, link: ExecutorLink, reason: str) -> None:
        """See `LinkOwner`."""
        await self._put(partial(self._remove, link, reason))

    async def superseded(self, address: str, error: StaleEpoch) -> None:
        """See `LinkOwner`."""
        await self._put(partial(self._on_superseded, address, error))

    def _on_joined(self, link: ExecutorLink, model: Any) -> None:
        caps = link.capabilities
        try:
            self.fleet.join(link.address, caps, model=model)
        except ModelMismatch as error:
            link.close(error.message)
            return
        self.links[link.executor_id] = link
        self.accounts.setdefault(link.address, StepAccounts())
        self._recorder.handshake(link.executor_id, link.address, caps.SerializeToString(deterministic=True))
        info = wire.executor_info(link.executor_id, caps)
        self._core.add_executor(info)
        _LOG.info("executor=%s joined id=%d device=%s blocks=%d", link.address, link.executor_id, caps.device, caps.num_blocks)

    def _on_drain(self, link: ExecutorLink) -> None:
        if link.executor_id in self.links:
            _LOG.info("executor=%s draining", link.address)
            self._recorder.drain(link.executor_id)
            self._core.drain_executor(link.executor_id)

    def _remove(self, link: ExecutorLink, reason: str) -> None:
        if self.links.pop(link.executor_id, None) is None:
            return
        _LOG.warning("executor=%s lost id=%d in_flight=%d reason=%s", link.address, link.executor_id, len(link.in_flight), reason)
        self.num_lost += 1
        self.accounts[link.address].workless()
        self._recorder.lost(link.executor_id, reason)
        self._deliver(self._core.remove_executor(link.executor_id))

    def _on_superseded(self, address: str, error: StaleEpoch) -> None:
        if not self.links:
            raise StaleEpoch(f"taken over by a newer scheduler at {address}, and no executor is left: {error.message}")


def _encode(outputs: Outputs, handles: Sequence[int], entries: Sequence[int] | None) -> object:
    return wire.step_tokens(outputs, handles=handles, entries=entries)
