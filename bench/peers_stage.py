"""Who stands and who works: servers are started when their turn comes, and only one has the processor at a time.

Peers that wait their turn are suspended (SIGSTOP), because some of them wait by spinning, and starting each afresh for each run
would take longer than the runs. Drumline is not: to its heartbeats a suspension could be a failure. What it uses while it idles
is in the column of the others.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import httpx

from bench.client import BenchError
from bench.peers_contestant import Contestant, Peer, Site, resume, suspend
from bench.peers_http import drumline
from bench.peers_results import DRUMLINE
from bench.workloads import SHAPES, quickened, requests_of

_SETTLE_S: Final = 0.5
"""Timers of a suspended server that have run out meanwhile are dealt with."""
FAILURES: Final = (BenchError, httpx.HTTPError, OSError, TimeoutError, asyncio.IncompleteReadError, ValueError, KeyError)
"""What ends the whole command in words. Whatever else a single peer raises is told in its row, for the others' sake."""


class DidNotStart(BenchError):
    """There is nothing to measure, now or later."""


def why(error: BaseException) -> str:
    """For a note in the table."""
    return str(error) or type(error).__name__


class Stage:
    """The servers of one comparison. Closing it ends them all."""

    def __init__(self, peers: Sequence[Peer], sites: dict[str, Site], *, flags: Sequence[str], seed: int) -> None:
        """`sites`: of every peer, and of Drumline."""
        self._peers = {peer.name: peer for peer in peers}
        self._sites = sites
        self._flags = flags
        self._seed = seed
        self._stacks: dict[str, AsyncExitStack] = {}
        self._standing: dict[str, Contestant] = {}
        self.words: Sequence[int] = ()

    async def __aenter__(self) -> "Stage":
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self._stacks):
            await self.close(name)

    async def at_work(self, name: str) -> Contestant:
        """The server, started and warm, or resumed. Raises DidNotStart."""
        if name in self._standing:
            self._wake(name)
            await asyncio.sleep(_SETTLE_S)
            return self._standing[name]
        stack = self._stacks[name] = AsyncExitStack()
        site = self._sites[name]
        opened = drumline(site, self._flags) if name == DRUMLINE else self._peers[name].standing(site)
        try:
            self._standing[name] = await stack.enter_async_context(opened)
            await self.warm_up(name)
        except Exception as error:
            await self.close(name)
            raise DidNotStart(f"it did not start: {why(error)}") from error
        return self._standing[name]

    async def warm_up(self, name: str) -> None:
        """Nothing that counts should compile kernels or touch pages first. Does nothing before `words` are known."""
        if self.words:
            await self._standing[name].run(requests_of(quickened(SHAPES["W2"]), self.words, seed=self._seed, repetition=-1))

    def rest(self, name: str) -> None:
        """Its turn is over."""
        server = self._standing[name].server if name in self._standing else None
        if name != DRUMLINE and server and server.launcher_pid is not None:
            suspend(server.launcher_pid)

    def _wake(self, name: str) -> None:
        server = self._standing[name].server
        if name != DRUMLINE and server.launcher_pid is not None:
            resume(server.launcher_pid)

    async def close(self, name: str) -> None:
        """Ends it, if it stands; one that is suspended could not end by itself."""
        if name in self._standing:
            self._wake(name)
        self._standing.pop(name, None)
        if stack := self._stacks.pop(name, None):
            await stack.aclose()

    async def close_fresh(self) -> None:
        """Ends the peers that are started anew for each workload."""
        for name, peer in self._peers.items():
            if peer.fresh:
                await self.close(name)
