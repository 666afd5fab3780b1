"""gRPC in one place: channel and server options that match on both ends, and errors that cross by name.

Keepalive must agree on both sides (a Python server allows one ping in five minutes by default and answers more with GOAWAY), and
message limits count per side, so both read the same numbers from `drumline.limits`.
"""

from typing import Any, Final, NoReturn, cast

import grpc
import grpc.aio

from drumline import limits
from drumline.errors import BY_CODE, DrumlineError, Unavailable, from_code

_CODE_KEY: Final = "drumline-error"
_RETRY_KEY: Final = "drumline-retry-after-s"
_COMMON: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_send_message_length", limits.MAX_GRPC_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", limits.MAX_GRPC_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", limits.KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", limits.KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
CHANNEL_OPTIONS: Final = (*_COMMON, ("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
SERVER_OPTIONS: Final = (
    *_COMMON,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", limits.KEEPALIVE_TIME_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)


def open_channel(target: str) -> grpc.aio.Channel:
    """A plaintext channel to `host:port`; internal links bind to loopback or a private network."""
    return grpc.aio.insecure_channel(target, options=list(CHANNEL_OPTIONS))


def new_server() -> grpc.aio.Server:
    """A server with the matching options; the caller adds services, binds and starts it."""
    return grpc.aio.server(options=list(SERVER_OPTIONS))


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", error: DrumlineError) -> NoReturn:
    """Ends an RPC with the status of the error's row; the code travels in the trailing metadata."""
    trailers = [(_CODE_KEY, error.code)]
    if error.retry_after_s is not None:
        trailers.append((_RETRY_KEY, str(error.retry_after_s)))
    status = grpc.StatusCode[BY_CODE[error.code].grpc_status]
    await context.abort(status, error.message, tuple(trailers))
    raise error  # context.abort raises; this line tells the type checker so


def error_of(failure: grpc.RpcError) -> DrumlineError:
    """The error that a peer sent with `abort`; a plain transport failure is Unavailable."""
    if not isinstance(failure, grpc.aio.AioRpcError):
        return Unavailable(str(failure))
    trailers: dict[str, str] = dict(cast(Any, failure.trailing_metadata() or ()))
    code = trailers.get(_CODE_KEY)
    if code is None:
        return Unavailable(f"{failure.code().name}: {failure.details() or 'no details'}")
    retry = trailers.get(_RETRY_KEY)
    return from_code(code, failure.details() or "", retry_after_s=int(retry) if retry else None)
