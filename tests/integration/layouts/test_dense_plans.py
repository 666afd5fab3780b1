"""ALIGNED and STRIPPED plans, written by hand, to a real executor process with a real model over gRPC (B9, C6, C14, F1, F2, F7)."""

from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

from drumline.errors import PlanRejected
from drumline.executor.v1 import executor_pb2 as pb
from drumline.executor.v1.executor_pb2_grpc import ExecutorStub
from drumline.plan.v1 import plan_pb2 as plans
from tests.support import tiny_models
from tests.support.executor_process import ExecutorProcess, Stream, new_sequence, prompt_rows, stub_of

PROMPTS = {slot: np.random.default_rng(slot).integers(2, 250, length).tolist() for slot, length in enumerate((40, 6, 6, 21))}
LAYERS = 3
NUM_TOKENS = 6
SAMPLING = {"temperature": 0.8, "seed": 5, "ignore_eos": True, "max_tokens": NUM_TOKENS}
DENSE = {"aligned": plans.LAYOUT_ALIGNED, "stripped": plans.LAYOUT_STRIPPED}


@pytest.fixture(scope="module")
def executor(tmp_path_factory) -> Iterator[ExecutorProcess]:
    folder = tiny_models.save(tiny_models.make(tiny_models.configs()["mistral"]), tmp_path_factory.mktemp("plans") / "tiny")
    flags = ("--backend", "cpu", "--model", str(folder), "--precision", "f32", "--num-blocks", "64", "--max-num-seqs", "8")
    with ExecutorProcess(*flags, "--num-threads", "1", "--mtp-per-seq-kv") as it:
        yield it
        assert it.is_alive


@pytest.fixture
async def stub(executor: ExecutorProcess) -> AsyncIterator[ExecutorStub]:
    async with stub_of(executor.target) as it:
        yield it


async def paged_tokens(stub: ExecutorStub) -> dict[int, list[int]]:
    """What each prompt is continued with, four rows in blocks."""
    stream = await Stream.open(stub)
    blocks = {slot: list(range(8 * slot, 8 * slot + 4)) for slot in PROMPTS}
    results = [await stream.step(**prompt_rows(PROMPTS, blocks=blocks, **SAMPLING))]
    results += [await stream.step(repeat_rows=True) for _ in range(NUM_TOKENS - 1)]
    return {slot: [result.token_ids[row] for result in results] for row, slot in enumerate(PROMPTS)}


async def prompt(stream: Stream, slots: list[int], *, layout: int) -> list[int]:
    """A prompt step of equal lengths; without blocks, which a dense row does not live in."""
    columns = prompt_rows({slot: PROMPTS[slot] for slot in slots}, blocks={slot: [] for slot in slots}, **SAMPLING)
    result = await stream.step(**columns, layout=layout, cache_op=plans.CACHE_OP_RESET)
    assert not result.lead_pad
    assert not result.row_errors
    return list(result.token_ids)


def decode(slots: list[int]) -> dict:
    size = len(slots)
    return {"slot": slots, "row_kind": [plans.ROW_KIND_DECODE] * size, "num_tokens": [1] * size, "start": [0] * size}


@pytest.mark.parametrize("name", DENSE)
async def test_c14_dense_plans_give_the_paged_tokens_with_leads_at_in_and_copies_as_the_layout_has_them(stub, name) -> None:
    want, layout = await paged_tokens(stub), DENSE[name]
    stream = await Stream.open(stub)
    tokens = {0: await prompt(stream, [0], layout=layout)}
    (one, two), three = await prompt(stream, [1, 2], layout=layout), await prompt(stream, [3], layout=layout)
    tokens |= {1: [one], 2: [two], 3: three}
    steps = []
    for step in range(NUM_TOKENS - 1):
        first, again = step == 0, layout == plans.LAYOUT_ALIGNED
        rows = decode([0, 1, 2, 3]) if first else {"repeat_rows": True}
        op = plans.CACHE_OP_NOTHING if again and not first else plans.CACHE_OP_IN
        steps.append(await stream.step(**rows, layout=layout, cache_op=op))
        for slot, token in enumerate(steps[-1].token_ids):
            tokens[slot].append(token)
    assert tokens == want
    assert list(steps[0].lead_pad) == [0, 34, 34, 19]
    assert list(steps[0].length) == [41, 7, 7, 22]
    copies = [step.copies.cache_in for step in steps]
    everything = 2 * LAYERS * 4
    assert copies == ([everything, 0, 0, 0, 0] if layout == plans.LAYOUT_ALIGNED else [everything] * 5)
    assert [len(step.lead_pad) for step in steps] == ([4, 0, 0, 0, 0] if layout == plans.LAYOUT_ALIGNED else [4] * 5)
    assert {step.copies.needless_in for step in steps} == {0}


async def test_a_row_that_is_aborted_leaves_its_cohort_without_a_new_in(stub) -> None:
    want = await paged_tokens(stub)
    stream = await Stream.open(stub)
    got = [(await prompt(stream, [0], layout=plans.LAYOUT_ALIGNED))[0]]
    await prompt(stream, [3], layout=plans.LAYOUT_ALIGNED)
    aligned = {"layout": plans.LAYOUT_ALIGNED}
    got.append((await stream.step(**decode([3, 0]), **aligned, cache_op=plans.CACHE_OP_IN)).token_ids[1])
    step = await stream.step(**decode([3, 0]), **aligned, cache_op=plans.CACHE_OP_NOTHING, aborted_slots=[3])
    assert list(step.skipped_row) == [0]
    assert list(step.length) == [0, 42]
    got += step.token_ids
    step = await stream.step(**decode([0]), **aligned, cache_op=plans.CACHE_OP_NOTHING)
    assert [*got, *step.token_ids] == want[0][:4]


async def test_rows_of_a_refused_step_end_by_name_and_the_session_goes_on(stub) -> None:
    """Without a grant unequal lengths are refused; it is no failure of the device."""
    stream = await Stream.open(stub, ragged_granted=False, ragged_reason="bucketed")
    await prompt(stream, [0], layout=plans.LAYOUT_STRIPPED)
    await prompt(stream, [1, 2], layout=plans.LAYOUT_STRIPPED)
    step = await stream.step(**decode([0, 1]), layout=plans.LAYOUT_STRIPPED, cache_op=plans.CACHE_OP_IN)
    assert {error.error.code for error in step.row_errors} == {"plan_rejected"}
    assert "layer 0: row 1 has 6 tokens where 40 were expected" in step.row_errors[0].error.message
    step = await stream.step(**decode([2]), layout=plans.LAYOUT_STRIPPED, cache_op=plans.CACHE_OP_IN)
    assert not step.row_errors
    step = await stream.step(layout=plans.LAYOUT_STRIPPED, cache_op=plans.CACHE_OP_RESET, freed_slots=[0, 1, 2])
    assert not step.row_errors


async def test_a_session_keeps_to_blocks_or_to_dense_caches(stub) -> None:
    stream = await Stream.open(stub)
    await prompt(stream, [0], layout=plans.LAYOUT_ALIGNED)
    with pytest.raises(PlanRejected, match="keeps to LAYOUT_PAGED or to the dense layouts"):
        await stream.step(**decode([0]))


async def test_a_prompt_in_chunks_and_one_that_hits_a_prefix(stub) -> None:
    """The first fills blocks by its live tokens, in two chunks; the second starts behind them."""
    want = await paged_tokens(stub)
    stream, aligned = await Stream.open(stub), {"layout": plans.LAYOUT_ALIGNED}
    columns = {"slot": [0], "block_row": [0, 0], "new_sequences": [new_sequence(0, PROMPTS[0], **SAMPLING)]}
    chunk = {"row_kind": [plans.ROW_KIND_PREFILL], "num_tokens": [25], "start": [0], "block_id": [9, 4]}
    await stream.step(**columns, **chunk, **aligned, cache_op=plans.CACHE_OP_RESET)
    last = {"slot": [0], "row_kind": [plans.ROW_KIND_PREFILL_LAST], "num_tokens": [15], "start": [25]}
    step = await stream.step(**last, **aligned, cache_op=plans.CACHE_OP_IN)
    assert list(step.token_ids) == want[0][:1]
    columns = {"slot": [5], "block_row": [0, 0], "block_id": [9, 4]}
    columns["new_sequences"] = [new_sequence(5, PROMPTS[0], num_cached_tokens=32, **SAMPLING)]
    rest = {"row_kind": [plans.ROW_KIND_PREFILL_LAST], "num_tokens": [8], "start": [32]}
    step = await stream.step(**columns, **rest, **aligned, cache_op=plans.CACHE_OP_IN)
    got = list(step.token_ids)
    step = await stream.step(**decode([5, 0]), **aligned, cache_op=plans.CACHE_OP_IN)
    assert [*got, step.token_ids[0]] == want[0][:2]
    assert step.token_ids[1] == want[0][1]


async def test_f7_the_attention_in_use_is_named_once_for_the_process(executor, stub) -> None:
    lines = [line for line in executor.log().splitlines() if "attention:" in line]
    assert len(lines) == 1
    for word in ("cpu.paged_attention", "cpu.dense_attention", "head size 16", "not diverted"):
        assert word in lines[0]
    kernels = (await stub.GetCapabilities(pb.GetCapabilitiesRequest())).kernels
    assert "cpu.dense_attention" in kernels


def test_b12_a_switch_that_has_nothing_to_decide_here_is_said_to_have_no_effect(executor) -> None:
    lines = [line for line in executor.log().splitlines() if "has no effect" in line]
    assert len(lines) == 1
    assert "mtp_per_seq_kv" in lines[0]
