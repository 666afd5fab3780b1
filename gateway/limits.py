"""What a request may weigh before anyone looks at it: header bytes and count, body bytes, and the time a body may take."""

import asyncio
import contextlib
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drumline import limits
from drumline.errors import DrumlineError, InvalidRequest
from gateway.errors import error_response

_HEADER_OVERHEAD: Final = 4
"""`: ` and the line's end."""
_LINGER_S: Final = 1.0


class _Refused(Exception):
    def __init__(self, error: DrumlineError, status: int) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = status


class HeaderLimits:
    """ASGI middleware: 431 over MAX_HEADERS or MAX_HEADER_BYTES, request line included. The server refuses what is far larger."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = scope["headers"]
            size = sum(len(name) + len(value) + _HEADER_OVERHEAD for name, value in headers)
            size += len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
            if len(headers) > limits.MAX_HEADERS or size > limits.MAX_HEADER_BYTES:
                error = InvalidRequest(f"at most {limits.MAX_HEADERS} headers and {limits.MAX_HEADER_BYTES} bytes of them")
                await error_response(error, status=431)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimits:
    """ASGI middleware: 413 over MAX_BODY_BYTES, said or chunked; 408 for a body that takes longer than `timeout_s`.

    Both close the connection, since the rest of the body is never read.
    """

    def __init__(self, app: ASGIApp, *, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _WatchedBody(receive, end_s=asyncio.get_running_loop().time() + self._timeout_s)
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            # The application learns that its body failed and would answer so in its own words; ours know why.
            if body.refused is None or started:
                started = True
                await send(message)

        body.refused = _announced_too_large(scope)
        if body.refused is None:
            with contextlib.suppress(_Refused):
                await self._app(scope, body.receive, watched_send)
        if body.refused is not None and not started:
            await _refuse(body.refused, receive, send)


async def _refuse(refused: _Refused, receive: Receive, send: Send) -> None:
    """Answers, then reads on for a moment: to close while the client still sends would reset the answer away."""
    response = error_response(refused.error, status=refused.status)
    response.headers["connection"] = "close"
    await send({"type": "http.response.start", "status": refused.status, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while (await receive()).get("more_body"):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class _WatchedBody:
    """`receive` with limits; `refused` is set when the body went over one."""

    def __init__(self, receive: Receive, *, end_s: float) -> None:
        self.refused: _Refused | None = None
        self._receive = receive
        self._end_s = end_s
        self._size = 0
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._end_s):
                message = await self._receive()
        except TimeoutError:
            self.refused = _Refused(InvalidRequest("the body took too long"), 408)
            raise self.refused from None
        self._size += len(message.get("body", b""))
        if self._size > limits.MAX_BODY_BYTES:
            self.refused = _too_large()
            raise self.refused
        self._complete = not message.get("more_body", False)
        return message


def _announced_too_large(scope: Scope) -> _Refused | None:
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    return _too_large() if any(not value.isdigit() or int(value) > limits.MAX_BODY_BYTES for value in lengths) else None


def _too_large() -> _Refused:
    return _Refused(InvalidRequest(f"the body must be at most {limits.MAX_BODY_BYTES} bytes"), 413)
