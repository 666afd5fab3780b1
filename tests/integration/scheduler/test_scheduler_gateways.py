"""Gateways that leave, do not read, flood or send nonsense; limits of messages; deadlines; draining the scheduler itself."""

import asyncio
import random

import grpc
import grpc.aio
import pytest

from drumline import limits
from drumline.common.v1 import common_pb2
from drumline.rpc import error_of, open_channel
from drumline.scheduler.v1 import scheduler_pb2 as pb
from drumline.scheduler.v1.scheduler_pb2_grpc import SchedulerStub
from tests.support.raw_gateway import RawGateway, sequence
from tests.support.scheduler_house import address_of, house, idle, until
from tests.support.scripted_executor import ScriptedExecutor
from tests.support.scripted_tokens import VOCAB_SIZE, expected_tokens


async def test_gateway_that_is_killed_has_its_sequences_aborted() -> None:
    """B054: blocks return."""
    async with ScriptedExecutor() as executor, house(executor) as process:
        executor.delay_s = 0.005
        async with RawGateway(address_of(process)) as stays:
            async with RawGateway(address_of(process)) as gone:
                await gone.submit(*[sequence([i], max_tokens=200) for i in range(5)])
                (kept,) = await stays.submit(sequence([1], max_tokens=30, seed=3))
                await gone.until(lambda: len(gone.tokens) == 5)
            await stays.done(kept)
            assert stays.tokens[kept] == expected_tokens([1], 3, 30)
        await idle(process)
        await until(lambda: not process.service.sessions)  # that the other one left, too, takes the server a moment to notice


async def test_b089_gateway_that_does_not_read_is_dropped() -> None:
    async with ScriptedExecutor() as executor, house(executor, max_backlog=50) as process:
        async with RawGateway(address_of(process)) as reader, RawGateway(address_of(process), reads=False) as deaf:
            # logprobs make messages big enough to fill the transport's own buffers soon
            await deaf.send(*[sequence([i], max_tokens=250, logprobs=True) for i in range(4)])
            await until(lambda: process.engine.routes.sessions())
            executor.results.clear()
            fat = "x" * 4000
            for session in process.engine.routes.sessions():
                for _ in range(100):
                    session.push(pb.ServeResponse(admission=pb.Admission(refused=common_pb2.SequenceError(message=fat))))
            (handle,) = await reader.submit(sequence([9], max_tokens=10, seed=2))
            await reader.done(handle)
            assert reader.tokens[handle] == expected_tokens([9], 2, 10)
            await until(lambda: process.service.num_gateways_dropped == 1)
        await idle(process)


async def test_b089_gateway_whose_transport_is_full_is_dropped_too() -> None:
    """The writer is inside a write that never returns then, and asks for no further message: somebody else must end the session."""
    async with ScriptedExecutor() as executor, house(executor, max_backlog=200) as process:
        async with RawGateway(address_of(process), reads=False) as deaf:
            await deaf.send(sequence([1], max_tokens=250))
            await until(lambda: process.engine.routes.sessions())
            executor.gate.clear()
            [session] = process.engine.routes.sessions()
            fat = pb.ServeResponse(admission=pb.Admission(refused=common_pb2.SequenceError(message="x" * 100_000)))
            stuck = -1
            while session.backlog != stuck or not stuck:
                stuck = session.backlog
                session.push(fat)
                await asyncio.sleep(0.05)
                stuck += session.backlog > stuck
            while session.error is None:
                session.push(fat)
            await until(lambda: process.service.num_gateways_dropped == 1, timeout_s=3)
            executor.gate.set()
        await idle(process)


async def test_bytes_that_are_no_message_end_their_own_session_by_name() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        async with open_channel(address_of(process)) as channel:
            serve = channel.stream_stream("/drumline.scheduler.v1.Scheduler/Serve", request_serializer=None)
            call = serve()
            await call.write(pb.ServeRequest(hello=pb.Hello(protocol_version=1)).SerializeToString())
            assert await call.read() is not grpc.aio.EOF
            await call.write(b"\xff" * 20)
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        (handle,) = await gateway.submit(sequence([3], max_tokens=5, seed=4))
        await gateway.done(handle)
        await idle(process)


async def test_b055_thousand_aborts_at_random_moments_leave_exact_books() -> None:
    rng = random.Random(7)
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        shared = list(range(64))
        for _ in range(100):
            prompts = [[*shared[: rng.randint(1, 64)], rng.randrange(VOCAB_SIZE)] for _ in range(10)]
            handles = await gateway.send(*[sequence(prompt, max_tokens=rng.randint(1, 60)) for prompt in prompts])
            for handle in rng.sample(handles, len(handles)):
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.random() * 0.004)
                await gateway.abort(handle)
        await idle(process)
        (last,) = await gateway.submit(sequence([1, 2], max_tokens=5, seed=1))
        await gateway.done(last)
        assert gateway.tokens[last] == expected_tokens([1, 2], 1, 5)


async def test_b045_every_seed_is_kept_and_only_an_absent_one_is_made_up() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        for seed in (0, 1, 2**63, 2**64 - 1):
            (handle,) = await gateway.submit(sequence([3], max_tokens=5, seed=seed))
            await gateway.done(handle)
            assert gateway.tokens[handle] == expected_tokens([3], seed, 5), seed
        unseeded = sequence([3], max_tokens=5)
        unseeded.sampling.ClearField("seed")
        first, second = await gateway.submit(unseeded, pb.SequenceRequest.FromString(unseeded.SerializeToString()))
        await gateway.done(first)
        await gateway.done(second)
        assert gateway.tokens[first] != gateway.tokens[second]


BAD = [
    ("prompt", sequence([])),
    ("prompt", sequence([VOCAB_SIZE])),
    ("max_tokens", sequence([1], max_tokens=0)),
    ("context", sequence([1] * 10, max_tokens=250)),
    ("temperature", sequence([1], temperature=float("nan"))),
    ("temperature", sequence([1], temperature=3.0)),
    ("logit_bias", sequence([1], logit_bias_ids=[VOCAB_SIZE], logit_bias_values=[1.0])),
    ("logit_bias", sequence([1], logit_bias_ids=[1], logit_bias_values=[])),
    ("stop_token_ids", sequence([1], stop_token_ids=[2**32 - 1])),
    ("top_logprobs", sequence([1], top_logprobs=21)),
    ("cache_salt", sequence([1], cache_salt="a/b")),
    ("request_id", sequence([1], request_id="x" * 129)),
    ("timeout", sequence([1], timeout_ms=2**32 - 1)),
]


@pytest.mark.parametrize(("field", "bad"), BAD, ids=[f"{index}-{field}" for index, (field, _) in enumerate(BAD)])
async def test_bad_submit_is_refused_by_name(field: str, bad: pb.SequenceRequest) -> None:
    """The scheduler checks again what a gateway should have checked; the session and its neighbours go on."""
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        good = sequence([3], max_tokens=5, seed=4)
        admission = await gateway.refused(pb.SequenceRequest.FromString(bad.SerializeToString()))
        assert field in admission.refused.message
        assert admission.refused.code in ("invalid_request", "context_length_exceeded")
        assert (await gateway.refused(sequence([1]), pb.SequenceRequest.FromString(bad.SerializeToString()))).handles == [2, 3]
        (handle,) = await gateway.submit(good)
        await gateway.done(handle)
        assert gateway.tokens[handle] == expected_tokens([3], 4, 5)


async def test_too_many_sequences_and_doubled_handles_are_refused() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        executor.gate.clear()
        many = [sequence([1]) for _ in range(limits.MAX_SEQUENCES_PER_REQUEST + 1)]
        assert "sequences" in (await gateway.refused(*many)).refused.message
        twice = sequence([1]), sequence([2])
        for one in twice:
            one.handle = 1000
        assert "handle" in (await gateway.refused(*twice)).refused.message
        (held,) = await gateway.submit(sequence([1]))
        taken = sequence([2])
        taken.handle = held
        gateway.admissions.clear()
        assert "handle" in (await gateway.refused(taken)).refused.message
        executor.gate.set()


async def test_b081_full_queue_refuses_with_retry_after() -> None:
    async with (
        ScriptedExecutor(max_num_seqs=1) as executor,
        house(executor, max_waiting_requests=3) as process,
        RawGateway(address_of(process)) as gateway,
    ):
        executor.gate.clear()
        (first,) = await gateway.submit(sequence([1], max_tokens=2))
        await until(lambda: process.view().num_resident == 1)
        waiting = await gateway.submit(*[sequence([2], max_tokens=2) for _ in range(3)])
        admission = await gateway.refused(sequence([3]))
        assert admission.refused.code == "overloaded"
        assert admission.retry_after_s >= 1
        executor.gate.set()
        await gateway.done(first, *waiting)


async def test_b090_deadline_stops_work_and_expired_entries_never_start() -> None:
    async with (
        ScriptedExecutor(max_num_seqs=1) as executor,
        house(executor) as process,
        RawGateway(address_of(process)) as gateway,
    ):
        executor.delay_s = 0.01
        (running,) = await gateway.submit(sequence([1], max_tokens=250, timeout_ms=300))
        (waiting,) = await gateway.submit(sequence([2, 3], max_tokens=250, timeout_ms=150))
        await gateway.done(running, waiting)
        assert {gateway.finished[running], gateway.finished[waiting]} == {common_pb2.FINISH_REASON_DEADLINE}
        assert gateway.errors[waiting][0] == "deadline_exceeded"
        assert not gateway.tokens[waiting]
        assert 10 < len(gateway.tokens[running]) < 60
        assert all(new.num_prompt_tokens == 1 for plan in executor.plans for new in plan.new_sequences)
        await idle(process)


async def test_b086_messages_above_four_megabytes_pass_and_above_our_limit_fail_cleanly() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        long = sequence([VOCAB_SIZE - 1] * 3_000_000)
        assert long.ByteSize() > 4 * 1024 * 1024
        assert (await gateway.refused(long)).refused.code == "context_length_exceeded"
        # a sender without our limit: the receiver refuses, the process and other sessions go on
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(address_of(process), options=options) as channel:
            call = SchedulerStub(channel).Serve()
            await call.write(pb.ServeRequest(hello=pb.Hello(protocol_version=1)))
            huge = pb.Hello(gateway_id="x" * (limits.MAX_GRPC_MESSAGE_BYTES + 1))
            await call.write(pb.ServeRequest(hello=huge))
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        (handle,) = await gateway.submit(sequence([3], max_tokens=5, seed=4))
        await gateway.done(handle)
        assert gateway.tokens[handle] == expected_tokens([3], 4, 5)


async def test_b085_both_ends_agree_on_keepalive() -> None:
    """Pings are sent no oftener than the server allows, whether or not a call is open."""
    from drumline import rpc

    client, server = dict(rpc.CHANNEL_OPTIONS), dict(rpc.SERVER_OPTIONS)
    assert server["grpc.http2.min_recv_ping_interval_without_data_ms"] <= client["grpc.keepalive_time_ms"]
    assert client["grpc.keepalive_permit_without_calls"] == server["grpc.keepalive_permit_without_calls"] == 1
    assert server["grpc.http2.max_ping_strikes"] == 0


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (pb.ServeRequest(submit=pb.Submit()), "invalid_request"),
        (pb.ServeRequest(), "invalid_request"),
        (pb.ServeRequest(hello=pb.Hello(protocol_version=99)), "protocol_mismatch"),
    ],
    ids=["submit first", "empty", "future protocol"],
)
async def test_session_that_begins_wrong_is_refused_by_name(first: pb.ServeRequest, code: str) -> None:
    async with ScriptedExecutor() as executor, house(executor) as process:
        channel = open_channel(address_of(process))
        call = SchedulerStub(channel).Serve()
        await call.write(first)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            async for _ in call:
                pass
        assert error_of(failure.value).code == code
        await channel.close()


async def test_b079_drain_refuses_new_and_lets_running_finish() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        executor.delay_s = 0.01
        (running,) = await gateway.submit(sequence([1], max_tokens=30, seed=6))
        stopping = asyncio.create_task(process.stop(drain_timeout_s=10))
        await until(lambda: process.engine.draining)
        assert (await gateway.refused(sequence([2]))).refused.code == "draining"
        assert (await gateway.stub.GetStatus(pb.GetStatusRequest())).draining
        await gateway.done(running)
        assert gateway.tokens[running] == expected_tokens([1], 6, 30)
        await stopping


async def test_what_outlives_the_drain_ends_by_name() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        executor.gate.clear()
        (stuck,) = await gateway.submit(sequence([1], max_tokens=30))
        await process.stop(drain_timeout_s=0.1)
        await until(lambda: stuck in gateway.errors)
        assert gateway.errors[stuck][0] == "draining"
        executor.gate.set()
