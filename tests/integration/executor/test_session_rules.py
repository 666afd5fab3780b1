"""Who may own an executor, and which plans it may send: over real gRPC, against a real process."""

import asyncio
import time

import grpc
import pytest
from tokenizers import Tokenizer

from drumline import limits
from drumline.errors import ModelMismatch, PlanRejected, ProtocolMismatch, SeamError, StaleEpoch, StaleGrant
from drumline.executor.v1 import executor_pb2 as pb
from drumline.executor.v1.executor_pb2_grpc import ExecutorStub
from drumline.version import PROTOCOL_VERSION
from tests.support.executor_process import GRANT, ExecutorProcess, Stream, opening, plan, prompt_rows, stub_of

PROMPT = {0: [5, 6, 7]}
BLOCKS = {0: [0, 1]}


async def test_capabilities_and_model_say_what_a_scheduler_and_a_gateway_need(stub: ExecutorStub) -> None:
    caps = await stub.GetCapabilities(pb.GetCapabilitiesRequest())
    assert (caps.block_size, caps.num_blocks, caps.max_model_len, caps.max_num_seqs, caps.max_num_batched_tokens) == (
        16,
        64,
        128,
        8,
        256,
    )
    assert (caps.world_size, caps.rank, caps.mtp_depth, caps.batch_invariant) == (1, 0, 0, True)
    assert caps.ragged.granted
    assert caps.ragged.reason
    model = await stub.GetModel(pb.GetModelRequest())
    assert model.model_digest == caps.model_digest
    tokenizer = Tokenizer.from_str(model.tokenizer_json.decode())
    text = " the drum line, ďábelské 😀 한국어\n"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.get_vocab_size() == model.vocab_size == caps.vocab_size
    assert tokenizer.token_to_id("<|im_end|>") in model.eos_token_ids


async def test_two_executors_of_one_model_differ_by_instance_only(executor: ExecutorProcess) -> None:
    with ExecutorProcess() as other:
        async with stub_of(executor.target) as one, stub_of(other.target) as two:
            a, b = [await it.GetCapabilities(pb.GetCapabilitiesRequest()) for it in (one, two)]
    assert a.model_digest == b.model_digest
    assert a.instance_id != b.instance_id


async def test_plans_run_and_results_come_back_in_order(stub: ExecutorStub) -> None:
    stream = await Stream.open(stub)
    await stream.send(**prompt_rows(PROMPT, blocks=BLOCKS, max_tokens=4))
    for _ in range(4):
        await stream.send(repeat_rows=True)
    results = [await stream.result() for _ in range(5)]
    assert [r.step_id for r in results] == [1, 2, 3, 4, 5]
    assert [list(r.length) for r in results] == [[3], [4], [5], [6], [0]]
    assert [list(r.finished_row) for r in results] == [[], [], [], [0], []]
    assert list(results[4].skipped_row) == [0]
    assert [r.num_blocks_in_use for r in results] == [2, 2, 2, 0, 0]
    assert all(r.session_epoch == stream.epoch for r in results)


async def test_half_closing_waits_for_every_result_and_frees_the_executor(stub: ExecutorStub) -> None:
    stream = await Stream.open(stub)
    await stream.send(**prompt_rows(PROMPT, blocks=BLOCKS))
    await stream.send(repeat_rows=True)
    await stream.call.done_writing()
    assert [(await stream.result()).step_id for _ in range(2)] == [1, 2]
    assert await stream.call.read() is grpc.aio.EOF
    assert await stream.call.code() is grpc.StatusCode.OK


async def test_a_newer_epoch_takes_over_and_nothing_of_the_old_session_is_left(stub: ExecutorStub) -> None:
    old = await Stream.open(stub)
    before = await old.step(**prompt_rows(PROMPT, blocks=BLOCKS))
    new = await Stream.open(stub)
    with pytest.raises(StaleEpoch, match="taken over"):
        await old.result()
    fresh = await new.step(slot=[0], row_kind=[3], num_tokens=[1], start=[0])
    assert fresh.row_errors[0].error.code == "plan_rejected"
    assert fresh.num_blocks_in_use == 0
    again = await new.step(**prompt_rows(PROMPT, blocks=BLOCKS))
    assert list(again.token_ids) == list(before.token_ids)


async def test_equal_and_lower_epochs_are_refused_and_disturb_nobody(stub: ExecutorStub) -> None:
    stream = await Stream.open(stub)
    for epoch in (stream.epoch, stream.epoch - 1, 1):
        with pytest.raises(StaleEpoch, match="not newer"):
            await Stream.open(stub, session_epoch=epoch)
    assert (await stream.step(**prompt_rows(PROMPT, blocks=BLOCKS))).step_id == 1


async def test_an_epoch_stays_spent_after_its_session_ended(stub: ExecutorStub) -> None:
    stream = await Stream.open(stub)
    await stream.call.done_writing()
    assert await stream.call.read() is grpc.aio.EOF
    with pytest.raises(StaleEpoch):
        await Stream.open(stub, session_epoch=stream.epoch)


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        ({"protocol_version": PROTOCOL_VERSION + 1}, ProtocolMismatch, "protocol_version"),
        ({"protocol_version": 0}, ProtocolMismatch, "protocol_version"),
        ({"model_digest": "another"}, ModelMismatch, "model_digest"),
        ({"grant_id": 0}, PlanRejected, "grant_id"),
        ({"session_epoch": 0}, SeamError, "session_epoch"),
    ],
)
async def test_an_open_that_does_not_fit_is_refused_by_name(stub: ExecutorStub, overrides: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        await Stream.open(stub, **overrides)


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"grant_id": GRANT + 1}, StaleGrant, "grant_id"),
        ({"session_epoch": 5}, StaleEpoch, "session_epoch"),
        ({"step_id": 9}, PlanRejected, "step_id 9 came where 2"),
        ({"step_id": 1}, PlanRejected, "step_id 1 came where 2"),
        ({"layout": 4}, PlanRejected, "layout 4 is not served; .* LAYOUT_PAGED, LAYOUT_ALIGNED, LAYOUT_STRIPPED"),
        ({"layout": 0}, PlanRejected, "layout"),
        ({"cache_op": 2}, PlanRejected, "cache_op 2 contradicts LAYOUT_PAGED"),
        ({"layout": 2, "cache_op": 0}, PlanRejected, "cache_op 0 is not known"),
        ({"draft_len": [2], "slot": [0], "row_kind": [3], "num_tokens": [3], "start": [0]}, PlanRejected, "draft_len"),
        ({"slot": [0, 1], "row_kind": [3], "num_tokens": [1, 1], "start": [0, 0]}, PlanRejected, "row_kind has 1"),
        ({"repeat_rows": True, "slot": [0]}, PlanRejected, "repeat_rows"),
        ({"freed_slots": [8]}, PlanRejected, "freed_slots"),
        ({"aborted_slots": [2**32 - 1]}, PlanRejected, "aborted_slots"),
        ({"copy_src": [0], "copy_dst": [64]}, PlanRejected, "copy_dst"),
        ({"copy_src": [0]}, PlanRejected, "copy_src"),
        ({"block_row": [3], "block_id": [0]}, PlanRejected, "block_row"),
        ({"slot": [0] * 9, "row_kind": [3] * 9, "num_tokens": [1] * 9, "start": [0] * 9}, PlanRejected, "max_num_seqs"),
    ],
)
async def test_a_plan_that_is_wrong_as_a_whole_ends_the_stream_by_name(
    stub: ExecutorStub, columns: dict, error: type, words: str
) -> None:
    stream = await Stream.open(stub)
    await stream.step()
    usual = {"step_id": 2, "session_epoch": stream.epoch}
    await stream.call.write(pb.RunPlansRequest(plan=plan(**(usual | columns))))
    with pytest.raises(error, match=words):
        await stream.result()
    assert (await (await Stream.open(stub)).step()).step_id == 1


async def test_repeat_rows_needs_a_plan_with_rows_before_it(stub: ExecutorStub) -> None:
    stream = await Stream.open(stub)
    with pytest.raises(PlanRejected, match="repeat_rows"):
        await stream.step(repeat_rows=True)


async def test_the_first_message_must_open_and_later_ones_must_not(stub: ExecutorStub) -> None:
    call = stub.RunPlans()
    await call.write(pb.RunPlansRequest(plan=plan(step_id=1)))
    with pytest.raises(PlanRejected, match="first message"):
        await Stream(call, 0).result()
    stream = await Stream.open(stub)
    await stream.call.write(await opening(stub))
    with pytest.raises(PlanRejected, match="must be `plan`"):
        await stream.result()
    stream = await Stream.open(stub)
    await stream.call.write(pb.RunPlansRequest())
    with pytest.raises(PlanRejected):
        await stream.result()


async def test_b089_a_scheduler_that_does_not_read_is_not_read() -> None:
    """Plans beyond the bound wait in the stream, not in the executor's memory; every result comes once it is read."""
    with ExecutorProcess("--fake-step-ms", "1") as slow:
        async with stub_of(slow.target) as stub:
            stream = await Stream.open(stub)
            await stream.send(**prompt_rows(PROMPT, blocks=BLOCKS, max_tokens=4))
            many = 10 * limits.MAX_PLANS_QUEUED
            for _ in range(many):
                await stream.send(repeat_rows=True)
            await asyncio.sleep(0.2)
            assert [(await stream.result()).step_id for _ in range(many + 1)] == list(range(1, many + 2))


async def test_step_timing_tells_queue_forward_and_idle(stub: ExecutorStub) -> None:
    with ExecutorProcess("--fake-step-ms", "20") as slow:
        async with stub_of(slow.target) as stub:
            stream = await Stream.open(stub)
            await stream.send(**prompt_rows(PROMPT, blocks=BLOCKS))
            await stream.send(repeat_rows=True)
            first, second = await stream.result(), await stream.result()
            assert (first.timing.idle_ns, second.timing.idle_ns) == (0, 0)
            assert first.timing.forward_ns >= 20e6
            assert second.timing.queue_ns >= 10e6
            await asyncio.sleep(0.1)
            third = await stream.step(repeat_rows=True)
            assert third.timing.idle_ns >= 90e6


async def test_b086_a_message_far_above_four_megabytes_passes() -> None:
    flags = ("--max-model-len", "1048576", "--max-num-seqs", "2", "--num-blocks", "65536", "--max-num-batched-tokens", "1048576")
    with ExecutorProcess(*flags) as big:
        async with stub_of(big.target) as stub:
            stream = await Stream.open(stub)
            prompt = [5] * (1048576 - 1)
            started = time.monotonic()
            columns = prompt_rows({0: prompt}, blocks={0: list(range(65536))}, prompt_logprobs=True, top_logprobs=0, max_tokens=1)
            columns["new_sequences"][0].sampling.prompt_logprobs = False
            message = plan(step_id=1, session_epoch=stream.epoch, **columns)
            message.freed_slots.extend([1] * 5_000_000)
            assert message.ByteSize() > 5 * 2**20
            await stream.call.write(pb.RunPlansRequest(plan=message))
            assert list((await stream.result()).finished_row) == [0]
            assert time.monotonic() - started < 60
