"""What a request may weigh before anyone looks at it: header bytes and count, body bytes, and the time a body may take."""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drumline import limits
from drumline.errors import DrumlineError, InvalidRequest
from gateway.errors import error_response

_HEADER_OVERHEAD: Final = 4
"""`: ` and the line's end."""


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
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            _check_announced(scope)
            await self._app(scope, self._limited(receive), watched_send)
        except _Refused as refused:
            if not started:
                response = error_response(refused.error, status=refused.status)
                response.headers["connection"] = "close"
                await response(scope, receive, send)

    def _limited(self, receive: Receive) -> Receive:
        size = 0
        complete = False
        end_s = asyncio.get_running_loop().time() + self._timeout_s

        async def limited() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(end_s):
                    message = await receive()
            except TimeoutError:
                raise _Refused(InvalidRequest(f"the body took longer than {self._timeout_s:g} s"), 408) from None
            size += len(message.get("body", b""))
            if size > limits.MAX_BODY_BYTES:
                raise _too_large()
            complete = not message.get("more_body", False)
            return message

        return limited


def _check_announced(scope: Scope) -> None:
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value) > limits.MAX_BODY_BYTES):
            raise _too_large()


def _too_large() -> _Refused:
    return _Refused(InvalidRequest(f"the body must be at most {limits.MAX_BODY_BYTES} bytes"), 413)
