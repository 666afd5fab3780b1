"""What gateways are told of the model and of readiness, before and after an executor has joined."""

import asyncio
import time

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from drumline.rpc import error_of
from drumline.scheduler.v1 import scheduler_pb2 as pb
from scheduler_svc.service import SERVICE_NAME
from tests.support.raw_gateway import RawGateway, sequence
from tests.support.scheduler_house import address_of, house
from tests.support.scripted_executor import ScriptedExecutor
from tests.support.scripted_tokens import VOCAB_SIZE


async def test_without_an_executor_everything_is_unavailable() -> None:
    async with house(executor=("127.0.0.1:1",), num_ready=0) as process, RawGateway(address_of(process)) as gateway:
        admission = await gateway.refused(sequence([1]))
        assert (admission.refused.code, admission.retry_after_s) == ("unavailable", 1)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await gateway.stub.GetModel(pb.GetModelRequest())
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "no_executor" in error_of(failure.value).message
        health = health_pb2_grpc.HealthStub(gateway.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        await asyncio.sleep(0.2)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_caller_with_a_deadline_is_told_the_model_as_soon_as_an_executor_has_joined() -> None:
    async with ScriptedExecutor() as executor:
        async with house(executor=("127.0.0.1:1",), num_ready=0) as process, RawGateway(address_of(process)) as gateway:
            began = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await gateway.stub.GetModel(pb.GetModelRequest(), timeout=1)
            assert failure.value.code() is grpc.StatusCode.UNAVAILABLE  # an answer, before the caller gives up
            assert time.monotonic() - began > 0.5
        async with house(executor, num_ready=0) as process, RawGateway(address_of(process)) as gateway:
            model = (await gateway.stub.GetModel(pb.GetModelRequest(), timeout=10)).model
            assert model.model_digest == executor.caps.model_digest


async def test_model_is_relayed_and_health_says_ready() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        model = (await gateway.stub.GetModel(pb.GetModelRequest())).model
        assert (model.model_digest, model.vocab_size) == (executor.caps.model_digest, VOCAB_SIZE)
        health = health_pb2_grpc.HealthStub(gateway.channel)
        await asyncio.sleep(0.2)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
