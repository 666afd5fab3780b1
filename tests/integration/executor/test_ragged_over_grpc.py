"""Declare, decide, set, advance: the grant's whole way over real calls to real processes (B4, B5, B7, B12, D6)."""

import pytest

from drumline.errors import PlanRejected, StaleGrant
from drumline.executor.v1 import executor_pb2 as pb
from drumline.plan.v1.plan_pb2 import ADVANCE_COHORT, ADVANCE_PER_SEQUENCE, ROW_KIND_DECODE
from tests.support.executor_process import ExecutorProcess, Stream, prompt_rows, stub_of


async def declaration_of(stub) -> tuple[bool, str]:
    caps = await stub.GetCapabilities(pb.GetCapabilitiesRequest())
    return caps.ragged.granted, caps.ragged.reason


async def advance_of(stub, **opening) -> int:
    """How rows move in a session opened like this; the same in its first two steps."""
    stream = await Stream.open(stub, **opening)
    first = await stream.step(**prompt_rows({0: [5, 6, 7]}, blocks={0: [0]}))
    second = await stream.step(repeat_rows=True)
    assert first.advance == second.advance
    await stream.call.done_writing()
    return first.advance


async def test_d6_per_sequence_advance_is_reachable_once_the_engine_grants_admission() -> None:
    """And the control: the same process, the same declaration, no grant. One session's grant is nothing to the next."""
    with ExecutorProcess("--fake-drafter", "mtp", "--mtp-per-seq-kv") as executor:
        async with stub_of(executor.target) as stub:
            granted, reason = await declaration_of(stub)
            assert granted, reason
            assert await advance_of(stub, ragged_granted=True) == ADVANCE_PER_SEQUENCE
            assert await advance_of(stub, ragged_granted=False, ragged_reason="control") == ADVANCE_COHORT
            assert await advance_of(stub, ragged_granted=True) == ADVANCE_PER_SEQUENCE
        assert "per-sequence KV advance is ON" in executor.log()
        assert "cannot honour it: the scheduler did not admit ragged cohorts" in executor.log()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--fake-drafter", "mtp"), "ARC_MTP_PER_SEQ_KV is off"),
        (("--fake-drafter", "v4", "--mtp-per-seq-kv"), "ARC_V4_XS_PER_SEQ is off"),
        (("--ragged", "refuse"), "refused by the setting `ragged`"),
    ],
)
async def test_a_refusal_says_who_and_why_and_a_grant_against_it_is_refused(flags: tuple[str, ...], words: str) -> None:
    with ExecutorProcess(*flags) as executor:
        async with stub_of(executor.target) as stub:
            granted, reason = await declaration_of(stub)
            assert not granted
            assert words in reason
            with pytest.raises(StaleGrant, match="this executor refuses them"):
                await Stream.open(stub, ragged_granted=True)
            assert await advance_of(stub) == ADVANCE_COHORT
        assert reason in executor.log()


async def test_a_plain_executor_needs_no_switch() -> None:
    with ExecutorProcess() as executor:
        async with stub_of(executor.target) as stub:
            assert (await declaration_of(stub))[0]
            assert await advance_of(stub) == ADVANCE_PER_SEQUENCE


async def test_d2_drafts_of_rows_that_move_apart_are_refused_by_name_without_a_grant() -> None:
    """Without drafts every row moves by one token, whatever the plan calls it."""
    with ExecutorProcess("--drafter", "mtp", "--mtp-depth", "3") as executor:
        async with stub_of(executor.target) as stub:
            stream = await Stream.open(stub, ragged_granted=False, ragged_reason="control")
            await stream.step(**prompt_rows({0: [5, 6, 7]}, blocks={0: [0]}, max_tokens=20))
            rows = {"slot": [0], "row_kind": [ROW_KIND_DECODE], "num_tokens": [4], "start": [0], "draft_len": [3]}
            result = await stream.step(advance=ADVANCE_COHORT, **rows)
            assert result.length[0] == 3 + len(result.token_ids)
            with pytest.raises(PlanRejected, match="nobody granted"):
                await stream.step(advance=ADVANCE_PER_SEQUENCE, **rows)
