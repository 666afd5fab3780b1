"""`drumline probe http://host:port/path | host:port`: is a service healthy? For health checks of containers, so it imports little.

A URL is healthy when it answers 200; `host:port` is asked through the standard gRPC health service. Status 0 = healthy, 1 = not.
"""

import sys
import urllib.error
import urllib.request
from typing import Final

_TIMEOUT_S: Final = 2.0


def main(argv: list[str]) -> int:
    """Exit status of the probe; says why when it is not 0."""
    if len(argv) != 1 or argv[0].startswith("-"):
        sys.stderr.write((__doc__ or "") + "\n")
        return 0 if argv == ["--help"] else 2
    why = _http(argv[0]) if argv[0].startswith("http://") else _grpc(argv[0])
    if why:
        sys.stderr.write(f"{argv[0]}: {why}\n")
    return 1 if why else 0


def _http(url: str) -> str:
    """Empty when healthy, else why not."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as reply:  # noqa: S310 - http:// was checked
            return "" if reply.status == 200 else f"answered {reply.status}"
    except (urllib.error.URLError, OSError) as error:
        return str(error)


def _grpc(address: str) -> str:
    """Empty when healthy, else why not."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "" if reply.status == health_pb2.HealthCheckResponse.SERVING else "not serving"
