"""What all requests share: settings, the scheduler link, the model, metrics, and the drain."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from starlette.requests import HTTPConnection

from drumline.errors import Draining, Overloaded, Unavailable
from gateway.choice import Choice
from gateway.config import GatewaySettings
from gateway.generation import Generation
from gateway.metrics import Metrics, RequestClock
from gateway.model import ServedModel
from gateway.scheduler_client import SchedulerClient
from gateway.sequences import ModelInfo, SequenceSpec
from gateway.stops import StopMatcher
from gateway.validation import Plan, choice_sampling

T = TypeVar("T")
_GRACE_S = 2.0
"""The scheduler ends a late sequence itself; the gateway's own deadline is for a scheduler that does not answer."""


class Gateway:
    """One per process. `start` and `stop` on the event loop that serves."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.draining = False
        self._model: ServedModel | None = None
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")
        self.one_long_text = asyncio.Semaphore(1)
        """Held by what only counts tokens, so that it never takes both threads."""
        self._live: set[Generation] = set()
        self._num_entering = 0
        """Requests between their submission and its answer: a drain waits for them too."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.client = SchedulerClient(
            settings.scheduler,
            on_model=self._on_model,
            reconnect_max_s=settings.reconnect_max_s,
            status_interval_s=settings.status_interval_s,
        )
        self.metrics = Metrics(status=lambda: self.client.status, is_ready=self.is_ready)

    async def start(self) -> None:
        """Starts dialling the scheduler."""
        await self.client.start()

    async def stop(self) -> None:
        """Ends the scheduler session and the worker threads."""
        await self.client.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def drain(self, timeout_s: float) -> None:
        """Refuses new work and waits for what lives; after `timeout_s` the rest fails with Draining."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        for generation in list(self._live):
            generation.fail(Draining("the server is shutting down"))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """`work` beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def is_ready(self) -> bool:
        """Whether a new request would be served now."""
        return not self.draining and self._model is not None and self.client.is_ready()

    def model(self) -> ServedModel:
        """The served model. Raises Draining or Unavailable."""
        if self.draining:
            raise Draining("the server is shutting down")
        if self._model is None:
            raise Unavailable("no model is served yet", retry_after_s=1)
        return self._model

    async def generate(self, plan: Plan, model: ServedModel, *, request_id: str, tenant: str) -> Generation:
        """Submits the whole plan. Raises what the scheduler refuses it with, before anything is answered."""
        if self.draining:
            raise Draining("the server is shutting down")
        if len(self._live) + self._num_entering >= self.settings.max_live_requests:
            raise Overloaded("too many requests are in hand", retry_after_s=1)
        specs = [
            SequenceSpec(
                request_id=request_id,
                prompt_token_ids=prompt.token_ids,
                sampling=choice_sampling(sampling, choice),
                tenant=tenant,
                cache_salt=plan.cache_salt,
                timeout_ms=int(self.settings.request_timeout_s * 1000),
            )
            for prompt, sampling in zip(plan.prompts, plan.sampling, strict=True)
            for choice in range(plan.num_choices)
        ]
        clock = RequestClock(self.metrics, num_prompt_tokens=sum(len(p.token_ids) for p in plan.prompts), num_sequences=len(specs))
        choices = [self._choice(index, plan, model) for index in range(len(specs))]
        self._num_entering += 1
        self._idle.clear()
        try:
            live = await self.client.submit(specs)
            clock.admitted()
            generation = Generation(
                live,
                choices,
                plan=plan,
                timeout_s=self.settings.request_timeout_s + _GRACE_S,
                clock=clock,
                on_close=self._closed,
            )
            self._live.add(generation)
        finally:
            self._num_entering -= 1
            self._note_idle()
        return generation

    def _choice(self, index: int, plan: Plan, model: ServedModel) -> Choice:
        prompt = index // plan.num_choices
        stops = StopMatcher(plan.stops, include_match=plan.include_stop) if plan.stops else None
        min_tokens = plan.sampling[prompt].min_tokens
        return Choice(index, prompt=prompt, detokenizer=model.tokenizer.detokenizer(), stops=stops, min_tokens=min_tokens)

    def _closed(self, generation: Generation) -> None:
        if generation in self._live:
            self._live.discard(generation)
            generation.clock.ended()
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._live and not self._num_entering:
            self._idle.set()

    async def _on_model(self, info: ModelInfo) -> None:
        names = self.settings.served_model_name
        build = asyncio.get_running_loop().run_in_executor(self._pool, lambda: ServedModel(info, names=names, pool=self._pool))
        self._model = await build


def gateway_of(connection: HTTPConnection) -> Gateway:
    """The process's gateway, from any request."""
    return cast(Gateway, connection.app.state.gateway)
