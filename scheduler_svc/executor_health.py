"""What an executor says of its own device, by the standard health service ("" = the device works, draining or not)."""

import grpc
import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from drumline.errors import Unavailable
from drumline.rpc import error_of

_UNWELL = "the executor says that its device fails"


async def check_well(channel: grpc.aio.Channel, *, timeout_s: float) -> None:
    """Raises Unavailable for an executor that says it is unwell, or says nothing; one without the service counts as well."""
    try:
        answer = await HealthStub(channel).Check(HealthCheckRequest(), timeout=timeout_s)
    except grpc.aio.AioRpcError as failure:
        if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
            return
        raise error_of(failure) from None
    if answer.status == HealthCheckResponse.NOT_SERVING:
        raise Unavailable(_UNWELL)


async def until_unwell(channel: grpc.aio.Channel) -> None:
    """Raises Unavailable as soon as the executor says so; returns when there is nobody to ask any more."""
    try:
        async for answer in HealthStub(channel).Watch(HealthCheckRequest()):
            if answer.status == HealthCheckResponse.NOT_SERVING:
                raise Unavailable(_UNWELL)
    except grpc.aio.AioRpcError:
        return
