"""Which sequence belongs to which gateway, and what waits to be sent there.

A key is the core's name of a sequence (rising, never reused); a handle is the gateway's. One entry of a step goes to one gateway;
all entries of one gateway travel as one message.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from drumline.errors import Cancelled, DrumlineError, Overloaded
from scheduler_svc import wire
from scheduler_svc.core.types import Outputs

Encode = Callable[[Outputs, Sequence[int], Sequence[int] | None], object]
"""(outputs, handles, entries or None for all) -> message for one gateway."""


class GatewaySession:
    """One gateway's stream: a bounded outbox that the engine fills and the service empties.

    `push` never waits; a gateway that lets `max_backlog` messages pile up is dropped by name, and `next` then raises that error.
    """

    def __init__(self, gateway_id: str, *, max_backlog: int) -> None:
        self.gateway_id = gateway_id
        self.keys: dict[int, int] = {}
        """handle -> key of the live sequences."""
        self.error: DrumlineError | None = None
        self._outbox: deque[object] = deque()
        self._max_backlog = max_backlog
        self._wake = asyncio.Event()
        self._dropped = asyncio.Event()

    @property
    def backlog(self) -> int:
        """Messages not yet taken by the writer."""
        return len(self._outbox)

    def push(self, message: object) -> None:
        """Queues a message; after a drop it goes nowhere."""
        if self.error is not None:
            return
        if len(self._outbox) >= self._max_backlog:
            self.drop(Overloaded(f"gateway {self.gateway_id} did not read {self._max_backlog} messages"))
            return
        self._outbox.append(message)
        self._wake.set()

    def drop(self, error: DrumlineError) -> None:
        """Ends the session: what is queued is forgotten. The first error stays. Idempotent."""
        if self.error is None:
            self.error = error
            self._outbox.clear()
            self._wake.set()
            self._dropped.set()

    async def next(self) -> object:
        """The next message in order; waits for one. Raises the error of `drop`."""
        while not self._outbox:
            if self.error is not None:
                raise self.error
            self._wake.clear()
            await self._wake.wait()
        return self._outbox.popleft()

    async def dropped(self) -> None:
        """Waits for `drop` and raises its error: a writer that is stuck in a peer which does not read never asks `next` again."""
        await self._dropped.wait()
        raise self.error or Cancelled("the session was dropped")

    async def flushed(self) -> None:
        """Returns once the writer took everything, or the session ended."""
        while self._outbox and self.error is None:  # noqa: ASYNC110 - once in a session's life
            await asyncio.sleep(0.005)


_Group = tuple[GatewaySession, Sequence[int], list[int] | None]


class Routes:
    """key -> (gateway, handle) of every live sequence."""

    def __init__(self) -> None:
        self.num_late = 0
        """Entries for sequences that no gateway waits for any more: counted and dropped."""
        self.num_unknown_aborts = 0
        self._routes: dict[int, tuple[GatewaySession, int]] = {}
        # Steady decode repeats the same keys step after step; their grouping by gateway is kept until a route goes.
        self._cache: dict[int, tuple[Sequence[int], list[_Group]]] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def add(self, session: GatewaySession, *, first_key: int, handles: Sequence[int]) -> None:
        """Sequences `first_key`, ... belong to `handles` of this gateway."""
        for key, handle in enumerate(handles, first_key):
            self._routes[key] = (session, handle)
            session.keys[handle] = key

    def remove(self, keys: Sequence[int]) -> None:
        """Forgets sequences; unknown keys are fine."""
        self._cache.clear()
        for key in keys:
            route = self._routes.pop(key, None)
            if route is not None:
                route[0].keys.pop(route[1], None)

    def keys_of(self, session: GatewaySession, handles: Sequence[int]) -> list[int]:
        """Keys of the live ones among `handles`; the others are counted."""
        keys = [session.keys[handle] for handle in handles if handle in session.keys]
        self.num_unknown_aborts += len(handles) - len(keys)
        return keys

    def sessions(self) -> list[GatewaySession]:
        """Gateways with live sequences."""
        return list({id(session): session for session, _ in self._routes.values()}.values())

    def deliver(self, outputs: Outputs, encode: Encode, *, source: int = 0) -> None:
        """Sends each gateway its entries, then forgets the sequences that ended. `source` is the executor that spoke; 0 = none."""
        if not outputs.keys:
            return
        keys, groups = self._cache.get(source, ((), []))
        if outputs.keys != keys:
            groups = self._group(outputs.keys)
            self._cache[source] = (outputs.keys, groups)
        for session, handles, entries in groups:
            session.push(encode(outputs, handles, entries))
        if outputs.finished:
            self.remove([outputs.keys[entry] for entry, _ in outputs.finished])

    def fail_all(self, encode: Callable[[Sequence[int]], object]) -> None:
        """Sends every gateway one message about all its live sequences, then forgets them."""
        for session in self.sessions():
            session.push(encode(list(session.keys)))
            self.remove(list(session.keys.values()))

    def _group(self, keys: Sequence[int]) -> list[_Group]:
        """The entries of each gateway, in order; entries that nobody waits for are counted and left out."""
        groups: dict[int, tuple[GatewaySession, list[int], list[int]]] = {}
        for entry, key in enumerate(keys):
            route = self._routes.get(key)
            if route is None:
                self.num_late += 1
                continue
            session, handle = route
            group = groups.setdefault(id(session), (session, [], []))
            group[1].append(handle)
            group[2].append(entry)
        return [
            (session, wire.handle_column(handles), None if len(entries) == len(keys) else entries)
            for session, handles, entries in groups.values()
        ]
