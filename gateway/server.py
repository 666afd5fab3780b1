"""The HTTP server: uvicorn, with limits on headers that it lacks, and a shutdown that drains."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from drumline import limits
from drumline.errors import InvalidRequest
from gateway.config import GatewaySettings
from gateway.errors import error_object
from gateway.service import create_app
from gateway.sse import ABORT_CONNECTION
from gateway.state import Gateway

_WRITE_BUFFER_BYTES: Final = limits.STREAM_BUFFER_BYTES // 4
_KEEP_ALIVE_S: Final = 30
"""Longer than most clients keep an idle connection, so that they rarely write to one that we just closed."""
_REASON: Final = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class GuardedProtocol(H11Protocol):
    """One connection. A request's headers must be complete HEADER_TIMEOUT_S after the connection or their first byte, and fit
    MAX_HEADER_BYTES; what is wrong with them is said as an error object. The application can drop the connection at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._inner: ASGIApp = self.app
        self.app = self._with_abort
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._watch_headers(waiting=True)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers(waiting=self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch_headers(waiting=False)
        super().connection_lost(exc)

    def _watch_headers(self, *, waiting: bool) -> None:
        if waiting and self._header_timer is None:
            self._header_timer = self.loop.call_later(limits.HEADER_TIMEOUT_S, self._headers_late)
        elif not waiting and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_late(self) -> None:
        self._header_timer = None
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            self._refuse(408, f"the headers took longer than {limits.HEADER_TIMEOUT_S:g} s")
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn from within its handler of h11's error, which knows the better status."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._refuse(status if status in _REASON else 400, "invalid HTTP request" if status != 431 else "the headers are too large")

    def _refuse(self, status: int, message: str) -> None:
        body = json.dumps(error_object(InvalidRequest(message))).encode()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            length = str(len(body)).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
            for event in (
                h11.Response(status_code=status, headers=headers, reason=_REASON[status]),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    async def _with_abort(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.setdefault("extensions", {})[ABORT_CONNECTION] = self.transport.abort
        await self._inner(scope, receive, send)


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn's own handling would stop listening at once and raise the signal again at the end."""

    on_started: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_started is not None:
            self.on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """A bound gateway. `port` is known from construction on. Raises OSError when the address is taken."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        app, self.gateway = create_app(settings)
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        self._socket = socket.create_server((settings.host, settings.port), family=family, backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=GuardedProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=limits.MAX_HEADER_BYTES,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=5,
        )
        self._server = _Server(config)
        self._stopping: asyncio.Task[None] | None = None

    async def serve(self, *, on_started: Callable[[], None] | None = None) -> None:
        """Serves until `stop` has drained; calls `on_started` once connections are answered."""
        self._server.on_started = on_started
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Begins the drain: not ready, new requests get 503, live ones may finish. Idempotent."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._drain(self.gateway))

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT begin the drain."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    async def _drain(self, gateway: Gateway) -> None:
        await gateway.drain(self._settings.drain_timeout_s)
        self._server.should_exit = True
