"""A name for each request, and one log line and one count when it ends."""

import logging
import re
import time
import uuid
from typing import Final, cast

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drumline.limits import MAX_REQUEST_ID_CHARS
from gateway.metrics import Metrics

_log = logging.getLogger("gateway.access")
_ID: Final = re.compile(rb"[A-Za-z0-9._:\-]{1,%d}" % MAX_REQUEST_ID_CHARS)
_QUIET: Final = frozenset({"/live", "/ready", "/health", "/metrics"})
_KEY: Final = "request_id"


class RequestContext:
    """ASGI middleware, the outermost. A client's own `X-Request-Id` is kept for logs and answers if it is safe to print;
    inside, requests are told apart by names of our own, so equal ones do no harm."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})[_KEY] = request_id
        begin_s = time.perf_counter()
        status = 499

        async def named_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, named_send)
        finally:
            self._metrics.http.labels(str(status)).inc()
            level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
            took_ms = (time.perf_counter() - begin_s) * 1000
            path = ascii(scope["path"][:100])[1:-1]
            _log.log(
                level, "request_id=%s method=%s path=%s status=%d ms=%.1f", request_id, scope["method"][:16], path, status, took_ms
            )


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _ID.fullmatch(value):
            return cast(str, value.decode("ascii"))
    return f"req-{uuid.uuid4().hex}"


def request_id_of(connection: HTTPConnection) -> str:
    """The name of a request, for logs and recordings."""
    return cast(str, connection.scope["state"][_KEY])
