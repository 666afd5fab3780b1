"""One HTTP request's live sequences: where the scheduler's reader puts news and the request's own task takes them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from drumline.errors import Cancelled, DrumlineError
from drumline.limits import STREAM_BUFFER_BYTES
from gateway.sequences import Delta

_PENDING_BYTES: Final = STREAM_BUFFER_BYTES * 3 // 4
"""What may wait here for a client that does not read; the rest of its allowance is the socket's write buffer."""


class LiveRequest:
    """Sequences that were submitted together. One task reads; `push`, `fail` and `withdraw` come from the event loop's callbacks.

    News of a sequence merge while nobody reads, so a slow reader costs memory only for the tokens themselves; while `blocked` (the
    client does not read) they are bounded, and beyond that the request fails alone with `Cancelled`.

    Attributes:
        handles: the scheduler's names of the sequences, in Submit order.
        blocked: set by whoever writes to the client while a write waits.
    """

    def __init__(self, handles: Sequence[int], *, withdraw: Callable[[Sequence[int]], None]) -> None:
        self.handles = tuple(handles)
        self.blocked = False
        self._withdraw = withdraw
        self._open = set(range(len(handles)))
        self._pending: dict[int, Delta] = {}
        self._pending_bytes = 0
        self._error: DrumlineError | None = None
        self._news = asyncio.Event()

    def push(self, delta: Delta) -> None:
        """Takes news of one sequence; news of one that was withdrawn are dropped."""
        if delta.index not in self._open:
            return
        if delta.finish_reason is not None:
            self._open.discard(delta.index)
        waiting = self._pending.get(delta.index)
        if waiting is None:
            self._pending[delta.index] = delta
        else:
            waiting.merge(delta)
        self._pending_bytes += delta.approximate_bytes()
        if self.blocked and self._pending_bytes > _PENDING_BYTES:
            self.fail(Cancelled("the client reads too slowly"))
        self._news.set()

    def fail(self, error: DrumlineError) -> None:
        """Ends the whole request; the first error stays and is raised after the news that came before it. Idempotent."""
        if self._error is None:
            self._error = error
        self.close()
        self._news.set()

    async def take(self) -> list[Delta]:
        """Waits for news and takes them all. Raises the error that ended the request."""
        await self._news.wait()
        if self._error is None:
            self._news.clear()
        elif not self._pending:
            raise self._error
        taken = list(self._pending.values())
        self._pending.clear()
        self._pending_bytes = 0
        return taken

    def withdraw(self, index: int) -> None:
        """Stops one sequence (a stop string matched); nothing more of it is delivered."""
        self._pending.pop(index, None)
        if index in self._open:
            self._open.discard(index)
            self._withdraw((self.handles[index],))

    def close(self) -> None:
        """Stops every sequence that still runs. Idempotent; always called at the end of the request."""
        left = [self.handles[index] for index in sorted(self._open)]
        self._open.clear()
        if left:
            self._withdraw(left)
