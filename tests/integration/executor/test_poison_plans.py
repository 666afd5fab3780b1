"""Poison through raw gRPC: a bad row is that row's error, a bad plan ends the stream by name, and the process lives on."""

import contextlib
import time

import grpc
import grpc.aio
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from drumline import rpc
from drumline.errors import BY_CODE, SeamError
from drumline.executor.v1 import executor_pb2 as pb
from drumline.executor.v1.executor_pb2_grpc import ExecutorStub
from drumline.plan.v1 import plan_pb2 as plans
from tests.support.executor_process import ExecutorProcess, Stream, new_sequence, plan, prompt_rows, stub_of

GOOD = {slot: [5 + slot, 6, 7, 8] for slot in range(4)}
GOOD_BLOCKS = {slot: [2 * slot, 2 * slot + 1] for slot in range(4)}
BAD_SLOT = 5


async def good_alone(stub: ExecutorStub, *, num_steps: int = 4) -> list[list[int]]:
    stream = await Stream.open(stub)
    results = [await stream.step(**prompt_rows(GOOD, blocks=GOOD_BLOCKS, temperature=0.7))]
    results += [await stream.step(repeat_rows=True) for _ in range(num_steps - 1)]
    return [list(result.token_ids) for result in results]


def beside(
    tokens: list[int], *, blocks: list[int] = (20, 21), num_tokens: int | None = None, start: int = 0, **new: object
) -> dict:
    """The good rows' plan with one more sequence in the middle."""
    columns = prompt_rows(GOOD, blocks=GOOD_BLOCKS, temperature=0.7)
    columns["new_sequences"].insert(2, new_sequence(BAD_SLOT, tokens, **new))
    columns["slot"].insert(2, BAD_SLOT)
    columns["row_kind"].insert(2, plans.ROW_KIND_PREFILL_LAST)
    columns["num_tokens"].insert(2, len(tokens) if num_tokens is None else num_tokens)
    columns["start"].insert(2, start)
    columns["block_row"] = [row + (row >= 2) for row in columns["block_row"]] + [2] * len(blocks)
    columns["block_id"] += blocks
    return columns


POISON = {
    "B024 vocab_size": ({"tokens": [5, 390]}, "invalid_request", "token_ids[1] is 390"),
    "B024 2**31": ({"tokens": [2**31, 5]}, "invalid_request", "token ids are 0 to 389"),
    "B024 2**32-1": ({"tokens": [2**32 - 1]}, "invalid_request", "token ids are 0 to 389"),
    "empty prompt": ({"tokens": []}, "invalid_request", "num_prompt_tokens"),
    "B040 stop ids": (
        {"tokens": [5], "stop_token_ids": [10_000_000, 2**32 - 5], "min_tokens": 1},
        "invalid_request",
        "stop_token_ids",
    ),
    "B041 500 stop ids": ({"tokens": [5], "stop_token_ids": [3] * 500}, "invalid_request", "stop_token_ids"),
    "B039 bias id": ({"tokens": [5], "logit_bias_ids": [390], "logit_bias_values": [1.0]}, "invalid_request", "logit_bias"),
    "B041 5000 biases": (
        {"tokens": [5], "logit_bias_ids": [3] * 5000, "logit_bias_values": [1.0] * 5000},
        "invalid_request",
        "logit_bias",
    ),
    "lone bias id": ({"tokens": [5], "logit_bias_ids": [3]}, "invalid_request", "logit_bias"),
    "NaN temperature": ({"tokens": [5], "temperature": float("nan")}, "invalid_request", "temperature"),
    "infinite penalty": ({"tokens": [5], "presence_penalty": float("inf")}, "invalid_request", "presence_penalty"),
    "top_p 7": ({"tokens": [5], "top_p": 7.0}, "invalid_request", "top_p"),
    "top_k 2**32-1": ({"tokens": [5], "top_k": 2**32 - 1}, "invalid_request", "top_k"),
    "B095 top_logprobs": ({"tokens": [5], "logprobs": True, "top_logprobs": 10**9}, "invalid_request", "top_logprobs"),
    "max_tokens 0": ({"tokens": [5], "max_tokens": 0}, "invalid_request", "max_tokens"),
    "min above max": ({"tokens": [5], "max_tokens": 2, "min_tokens": 3}, "invalid_request", "min_tokens"),
    "too long": ({"tokens": [5] * 128, "blocks": list(range(20, 28))}, "context_length_exceeded", "max_model_len"),
    "far too long": ({"tokens": [5] * 5000, "blocks": list(range(20, 28))}, "context_length_exceeded", "max_model_len"),
    "more prompt than tokens": ({"tokens": [5, 6], "num_prompt_tokens": 3}, "invalid_request", "num_prompt_tokens"),
    "all cached": ({"tokens": [5, 6], "num_cached_tokens": 2}, "plan_rejected", "num_cached_tokens"),
    "wrong start": ({"tokens": [5, 6], "start": 1}, "plan_rejected", "start 1 of the chunk is not the sequence's own length 0"),
    "huge start": ({"tokens": [5, 6], "start": 2**32 - 1}, "plan_rejected", "start"),
    "num_tokens 0": ({"tokens": [5, 6], "num_tokens": 0}, "plan_rejected", "num_tokens"),
    "num_tokens 2**32-1": ({"tokens": [5, 6], "num_tokens": 2**32 - 1}, "plan_rejected", "num_tokens"),
    "block out of range": ({"tokens": [5, 6], "blocks": [64]}, "plan_rejected", "block_id"),
    "block 2**32-1": ({"tokens": [5, 6], "blocks": [2**32 - 1]}, "plan_rejected", "block_id"),
    "too few blocks": ({"tokens": [5] * 17, "blocks": [20]}, "plan_rejected", "blocks cover 16 tokens, the row needs 17"),
    "no blocks": ({"tokens": [5], "blocks": []}, "plan_rejected", "blocks cover 0"),
    "too many blocks": ({"tokens": [5], "blocks": [20] * 9}, "plan_rejected", "more than the longest sequence"),
}


@pytest.mark.parametrize("name", POISON)
async def test_b024_b039_b040_b041_b095_a_poison_row_fails_alone(stub: ExecutorStub, name: str) -> None:
    """The good rows' tokens stay equal, the bad row is told why, and is skipped from then on."""
    bad, code, words = POISON[name]
    expected = await good_alone(stub)
    stream = await Stream.open(stub)
    first = await stream.step(**beside(**bad))
    assert [error.row for error in first.row_errors] == [2]
    assert first.row_errors[0].error.code == code
    assert words in first.row_errors[0].error.message
    assert list(first.num_emitted) == [1, 1, 0, 1, 1]
    assert list(first.token_ids) == expected[0]
    for step in expected[1:]:
        result = await stream.step(repeat_rows=True)
        assert list(result.skipped_row) == [2]
        assert list(result.token_ids) == step
        assert result.num_blocks_in_use == 8


@pytest.mark.parametrize("slot", [7, 8, 2**31, 2**32 - 1])
async def test_a_row_without_a_sequence_fails_alone(stub: ExecutorStub, slot: int) -> None:
    expected = await good_alone(stub)
    stream = await Stream.open(stub)
    columns = prompt_rows(GOOD, blocks=GOOD_BLOCKS, temperature=0.7)
    for name, value in (("slot", slot), ("row_kind", 3), ("num_tokens", 1), ("start", 0)):
        columns[name].append(value)
    result = await stream.step(**columns)
    assert [(error.row, error.error.code) for error in result.row_errors] == [(4, "plan_rejected")]
    assert list(result.token_ids) == expected[0]


async def test_b077_a_step_that_raises_fails_its_rows_and_the_session_goes_on() -> None:
    """Each row of the broken step gets `internal`; the next step runs; health tells the truth only when it keeps failing."""
    with ExecutorProcess("--fake-crash-token", "66", "--fake-fail-token", "67", "--max-num-seqs", "8") as executor:
        async with stub_of(executor.target) as stub:
            stream = await Stream.open(stub)
            broken = await stream.step(**prompt_rows({0: [5, 66], 1: [5, 6]}, blocks={0: [0], 1: [1]}))
            assert [(e.row, e.error.code) for e in broken.row_errors] == [(0, "internal"), (1, "internal")]
            assert "fake_crash_token" not in broken.row_errors[0].error.message
            assert broken.num_blocks_in_use == 0
            alone = await stream.step(**prompt_rows({2: [5, 67], 3: [5, 6]}, blocks={2: [2], 3: [3]}))
            assert [(e.row, e.error.code) for e in alone.row_errors] == [(0, "internal")]
            assert list(alone.num_emitted) == [0, 1]
        assert executor.is_alive


async def test_b103_row_errors_carry_no_paths_addresses_or_tracebacks(stub: ExecutorStub) -> None:
    for bad, _, _ in POISON.values():
        stream = await Stream.open(stub)
        message = (await stream.step(**beside(**bad))).row_errors[0].error.message
        assert "0x" not in message
        assert "/" not in message
        assert "Traceback" not in message


async def test_bytes_that_are_no_message_end_the_stream_and_nothing_else(executor: ExecutorProcess, stub: ExecutorStub) -> None:
    async with rpc.open_channel(executor.target) as channel:
        for garbage in (b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f", b"\x80\x04\x95cos\nsystem\n"):
            raw = channel.stream_stream("/drumline.executor.v1.Executor/RunPlans")
            call = raw()
            await call.write(garbage)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call.read()
            assert await call.code() is not grpc.StatusCode.OK
    assert (await (await Stream.open(stub)).step()).step_id == 1


small = st.integers(0, 9)
wild = st.one_of(small, st.sampled_from([63, 64, 127, 128, 389, 390, 2**31 - 1, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))
column = st.lists(st.one_of(small, wild), max_size=6)
number = st.one_of(st.sampled_from([0.0, 1.0, -1.0, float("nan"), float("inf"), 1e38]), st.floats(width=32))
sampling = st.fixed_dictionaries(
    {"max_tokens": st.one_of(st.integers(1, 20), wild)},
    optional={
        "temperature": number, "top_p": number, "min_p": number, "top_k": wild,
        "repetition_penalty": number, "presence_penalty": number, "frequency_penalty": number, "seed": st.integers(0, 2**64 - 1),
        "min_tokens": wild, "stop_token_ids": column,
        "ignore_eos": st.booleans(), "logprobs": st.booleans(), "top_logprobs": wild, "prompt_logprobs": st.booleans(),
        "logit_bias_ids": column, "logit_bias_values": st.lists(number, max_size=6),
    },
)  # fmt: skip
sequence = st.builds(
    lambda slot, ids, prompt, cached, params: new_sequence(slot, ids, num_prompt_tokens=prompt, num_cached_tokens=cached, **params),
    st.one_of(st.integers(0, 7), wild), st.lists(st.one_of(st.integers(0, 389), wild), max_size=20), small, small, sampling,
)  # fmt: skip


@st.composite
def plan_columns(draw: st.DrawFn) -> dict:
    """A good plan of a few rows with some columns replaced by wild ones, mostly still of one length."""
    prompts = {
        slot: draw(st.lists(st.integers(0, 389), min_size=1, max_size=20)) for slot in draw(st.sets(st.integers(0, 7), max_size=4))
    }
    columns = prompt_rows(prompts, blocks={slot: [2 * slot, 2 * slot + 1] for slot in prompts})
    columns["new_sequences"] += draw(st.lists(sequence, max_size=2))
    size = len(prompts)
    for name in draw(st.sets(st.sampled_from(["slot", "row_kind", "num_tokens", "start"]), max_size=2)):
        values = st.one_of(small, st.integers(-(2**31), 2**31 - 1)) if name == "row_kind" else wild
        exact = draw(st.integers(0, 4)) > 0
        columns[name] = draw(st.lists(values, min_size=size if exact else 0, max_size=size if exact else 6))
    for name in draw(
        st.sets(st.sampled_from(["block_row", "block_id", "freed_slots", "aborted_slots", "copy_src", "draft_len"]), max_size=2)
    ):
        columns[name] = draw(column)
    if draw(st.integers(0, 5)) == 0:
        columns |= {
            "layout": draw(st.integers(0, 9)),
            "cache_op": draw(small),
            "advance": draw(small),
            "repeat_rows": draw(st.booleans()),
        }
    columns["want_digests"] = draw(st.booleans())
    return columns


FAST = (Phase.explicit, Phase.generate)


@settings(
    max_examples=120, deadline=None, phases=FAST, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.one_of(plan_columns(), st.just({"repeat_rows": True})), min_size=1, max_size=5))
async def test_fuzzed_plans_give_a_result_a_row_error_or_a_named_error(stub: ExecutorStub, session: list[dict]) -> None:
    """Whatever comes: an answer within seconds, error codes out of the table, and the executor serves the next session."""
    stream = await Stream.open(stub)
    started = time.monotonic()
    with contextlib.suppress(SeamError):
        for columns in session:
            result = await stream.step(**columns)
            num_rows = len(result.length)
            assert all(error.row < num_rows and error.error.code in BY_CODE and error.error.message for error in result.row_errors)
            assert not set(result.skipped_row) & {error.row for error in result.row_errors}
            assert len(result.digest) == (num_rows if columns.get("want_digests") else 0)
            assert result.num_blocks_in_use <= 64
    assert time.monotonic() - started < 5


@settings(max_examples=150, deadline=None, phases=FAST, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_flipped_bytes_of_a_real_plan_never_hurt_the_executor(
    executor: ExecutorProcess, stub: ExecutorStub, data: st.DataObject
) -> None:
    stream = await Stream.open(stub)
    good = plan(step_id=1, session_epoch=stream.epoch, **prompt_rows(GOOD, blocks=GOOD_BLOCKS))
    wire = bytearray(pb.RunPlansRequest(plan=good).SerializeToString())
    for _ in range(data.draw(st.integers(1, 6))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    try:
        mutated = pb.RunPlansRequest.FromString(bytes(wire))
    except Exception:
        return  # no message at all: the test above
    await stream.call.write(mutated)
    with contextlib.suppress(SeamError):
        await stream.result()
    assert executor.is_alive


async def test_after_all_this_the_good_rows_still_say_the_same(stub: ExecutorStub) -> None:
    with ExecutorProcess(
        "--max-model-len", "128", "--max-num-seqs", "8", "--num-blocks", "64", "--max-num-batched-tokens", "256"
    ) as fresh:
        async with stub_of(fresh.target) as other:
            assert await good_alone(stub) == await good_alone(other)
