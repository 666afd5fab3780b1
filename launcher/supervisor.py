"""Starts services stage by stage, restarts those that die, and stops them in the opposite order."""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from launcher.process import Child, Service, StartFailed, describe

log = logging.getLogger(__name__)
_STOP_MARGIN_S: Final = 5.0
"""Time on top of the drain in which everything is gone: part of the promise `exit within drain + 5 s`."""


@dataclass
class Backoff:
    """How long to wait before a restart, and when to give up: pure, told what happened.

    A life of `healthy_s` or more is restarted at once. Shorter ones in a row wait longer each time; more than `max_short_lives` of
    them end it all.
    """

    healthy_s: float = 5.0
    first_delay_s: float = 0.25
    max_delay_s: float = 10.0
    max_short_lives: int = 8
    num_short_lives: int = 0

    def after(self, lifetime_s: float) -> float | None:
        """Seconds to wait after a death; None = give up."""
        if lifetime_s >= self.healthy_s:
            self.num_short_lives = 0
            return 0.0
        self.num_short_lives += 1
        if self.num_short_lives > self.max_short_lives:
            return None
        return float(min(self.max_delay_s, self.first_delay_s * 2 ** (self.num_short_lives - 1)))


class Supervisor:
    """Owns the processes of `stages`: those of one start together, each stage once the addresses of the one before are known."""

    def __init__(
        self,
        stages: Sequence[Sequence[Service]],
        *,
        drain_timeout_s: float,
        on_ready: Callable[[dict[str, str]], Awaitable[None]],
        new_backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        """`on_ready` gets the addresses by service name once, when all are ready; what it raises ends everything."""
        self._stages = [[Child(service) for service in stage] for stage in stages]
        self._drain_timeout_s = drain_timeout_s
        self._on_ready = on_ready
        self._new_backoff = new_backoff
        self._stopping = asyncio.Event()
        self._killing = asyncio.Event()

    @property
    def children(self) -> list[Child]:
        """All children, first stage first."""
        return [child for stage in self._stages for child in stage]

    def addresses(self) -> dict[str, str]:
        """Addresses of the services, as far as they are known."""
        return {child.service.name: child.address for child in self.children if child.address}

    def request_stop(self) -> None:
        """Drain and end. Idempotent; safe in a signal handler of the loop."""
        self._stopping.set()

    def request_kill(self) -> None:
        """Drain and end; asked while that goes on: kill and end. A person's second Ctrl-C."""
        (self._killing if self._stopping.is_set() else self._stopping).set()

    async def run(self) -> int:
        """Runs until a signal, a failed start or a service that keeps dying; the exit status. Leaves no process behind."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.request_stop)
        loop.add_signal_handler(signal.SIGINT, self.request_kill)
        work = asyncio.create_task(self._serve())
        stop = asyncio.create_task(self._stopping.wait())
        code = 0
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                code = await work
        except StartFailed as failure:
            log.error("%s", failure)
            code = failure.code
        finally:
            self._stopping.set()
            await _cancel(work, stop)
            drained = await self._stop_all()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        return code if code else int(not drained)

    async def _serve(self) -> int:
        """Starts all, says so, then keeps all running; returns when one cannot be kept."""
        for stage in self._stages:
            await _all(child.bind(self.addresses()) for child in stage)
        ready = [asyncio.Event() for _ in self.children]
        keeping = [self._keep(child, event) for child, event in zip(self.children, ready, strict=True)]
        return await _first([self._say_so(ready), *keeping])

    async def _say_so(self, ready: list[asyncio.Event]) -> int:
        """Once all have been ready; then it is never done."""
        for event in ready:
            await event.wait()
        await self._on_ready(self.addresses())
        never: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        return await never

    async def _keep(self, child: Child, ready: asyncio.Event) -> int:
        """Restarts one child whenever it ends after it was ready once; returns 1 when it flaps. Raises StartFailed before that."""
        await child.ready()
        ready.set()
        backoff = self._new_backoff()
        ready_at = time.monotonic()
        while True:
            status = await child.wait()
            lifetime_s = time.monotonic() - ready_at if ready_at else 0.0
            delay_s = backoff.after(lifetime_s)
            if delay_s is None:
                log.error("%s %s once more: it cannot be kept running", child.service.name, describe(status))
                return 1
            log.warning("%s %s and is restarted in %.2f s", child.service.name, describe(status), delay_s)
            await asyncio.sleep(delay_s)
            try:
                await child.start(self.addresses())
                ready_at = time.monotonic()
                log.warning("%s is back at %s", child.service.name, child.address)
            except StartFailed as failure:
                log.warning("%s", failure)
                ready_at = 0.0

    async def _stop_all(self) -> bool:
        """Last stage first, so that nobody loses what it depends on; whether all ended by themselves."""
        kill = asyncio.create_task(self._kill_when_asked())
        end = time.monotonic() + self._drain_timeout_s + _STOP_MARGIN_S
        drained = True
        for index, stage in reversed(list(enumerate(self._stages))):
            # What a hanging stage may use up leaves a second for each stage still to come.
            left_s = max(0.5, end - 1.0 * (index + 1) - time.monotonic())
            results = await asyncio.gather(*(child.stop(timeout_s=left_s) for child in stage))
            drained = drained and all(results)
        await _cancel(kill)
        return drained and not self._killing.is_set()

    async def _kill_when_asked(self) -> None:
        await self._killing.wait()
        log.warning("asked twice: killing what is left")
        await asyncio.gather(*(child.kill() for child in self.children))


async def _all(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Runs all together; the first failure cancels the others and is raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _cancel(*tasks)


async def _first(work: Iterable[Coroutine[Any, Any, int]]) -> int:
    """Result of whichever ends first; the others are cancelled."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        await _cancel(*tasks)


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
