"""Server-sent events: one line of ASCII-safe JSON each, a blank line after each, `data: [DONE]` once, last."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from drumline.errors import Cancelled, DrumlineError, Internal
from drumline.limits import SLOW_CLIENT_TIMEOUT_S
from gateway.errors import error_object
from gateway.generation import Generation

_log = logging.getLogger(__name__)
_DONE: Final = b"data: [DONE]\n\n"
_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}
ABORT_CONNECTION: Final = "drumline.abort"
"""Key of `scope["extensions"]`: a function that drops the connection without waiting for the client to read."""


def event(data: Mapping[str, Any]) -> bytes:
    """One event."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode("ascii") + b"\n\n"


class EventStream(Response):
    """Streams events until the generation ends; closes it in every case.

    `first` has already been produced, so that an error before it could still become an HTTP status. An error after it becomes one
    `error` event. A client that does not read for SLOW_CLIENT_TIMEOUT_S, or lets too much pile up, is cut.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncIterator[bytes], *, generation: Generation) -> None:
        self.status_code = 200
        self.background = None
        self._first = first
        self._rest = rest
        self._generation = generation
        self.init_headers(_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._stream(send)
        except (TimeoutError, Cancelled):
            abort = scope.get("extensions", {}).get(ABORT_CONNECTION)
            if abort is not None:
                abort()
        finally:
            self._generation.close()

    async def _stream(self, send: Send) -> None:
        try:
            await self._send(send, self._first)
            async for chunk in self._rest:
                await self._send(send, chunk)
        except (Cancelled, TimeoutError):
            raise
        except DrumlineError as error:
            await self._send(send, event(error_object(error)))
        except Exception:
            _log.exception("a stream failed")
            await self._send(send, event(error_object(Internal("internal error"))))
        await self._send(send, _DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, chunk: bytes) -> None:
        self._generation.set_blocked(True)
        async with asyncio.timeout(SLOW_CLIENT_TIMEOUT_S):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._generation.set_blocked(False)
