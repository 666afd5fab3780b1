"""The plan stream of a replay: plans out, results in, in order, a bounded number in flight."""

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from drumline import rpc
from drumline.errors import ProtocolMismatch, Unavailable
from drumline.executor.v1.executor_pb2 import GetCapabilitiesRequest, OpenSession, RunPlansRequest
from drumline.executor.v1.executor_pb2_grpc import ExecutorStub
from drumline.plan.v1.plan_pb2 import StepPlan, StepResult
from drumline.version import PROTOCOL_VERSION

WINDOW: Final = 4
T = TypeVar("T")


async def run_plans(
    target: str, plans: Iterable[tuple[T, StepPlan]], *, model_digest: str, session_epoch: int, grant_id: int, granted: bool = True
) -> AsyncGenerator[tuple[T, StepResult], None]:
    """Runs plans on the executor at `target` in a session of its own; yields each tag with its result. `granted`: as recorded.

    Raises the executor's named error: ModelMismatch for another model, PlanRejected for a plan it cannot apply, StaleEpoch.
    """
    async with rpc.open_channel(target) as channel:
        stub = ExecutorStub(channel)
        call: Any = stub.RunPlans()  # type: ignore[call-arg]
        try:
            caps: Any = await stub.GetCapabilities(GetCapabilitiesRequest())
            opening = OpenSession(
                session_epoch=session_epoch,
                protocol_version=min(PROTOCOL_VERSION, caps.protocol_version),
                model_digest=model_digest,
                grant_id=grant_id,
                ragged_granted=caps.ragged.granted and granted,
                ragged_reason="as recorded",
            )
            await call.write(RunPlansRequest(open=opening))
            if (await _read(call)).WhichOneof("message") != "opened":
                raise ProtocolMismatch("the executor did not answer `open` with `opened`")
            async for pair in _pump(call, iter(plans)):
                yield pair
        except grpc.RpcError as failure:
            raise rpc.error_of(failure) from None
        finally:
            call.cancel()


async def _pump(call: Any, plans: Iterator[tuple[T, StepPlan]]) -> AsyncGenerator[tuple[T, StepResult], None]:
    waiting: deque[T] = deque()
    more = True
    while more or waiting:
        while more and len(waiting) < WINDOW:
            item = next(plans, None)
            if item is None:
                more = False
                break
            await call.write(RunPlansRequest(plan=item[1]))
            waiting.append(item[0])
        if waiting:
            response = await _read(call)
            if response.WhichOneof("message") == "result":
                yield waiting.popleft(), response.result


async def _read(call: Any) -> Any:
    response = await call.read()
    if response is grpc.aio.EOF:  # type: ignore[attr-defined]
        raise rpc.error_of(await _failure(call))
    return response


async def _failure(call: Any) -> grpc.RpcError:
    code = await call.code()
    if code is grpc.StatusCode.OK:
        raise Unavailable("the executor ended the plan stream")
    return grpc.aio.AioRpcError(code, (), await call.trailing_metadata(), await call.details())  # type: ignore[call-arg,arg-type]
