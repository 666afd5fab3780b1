"""The edge: what travels comes out as the plain data says, and results go back whole."""

import numpy as np
import pytest

from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from drumline.plan.v1 import plan_pb2 as plans
from executor_svc.backends.fake import FakeBackend, FakeOptions
from executor_svc.plan import CopyCounts, Logprobs, StepResult
from executor_svc.wire import capabilities, model_to_wire, plan_of, result_to_wire
from scheduler_svc import wire as scheduler_wire
from tests.support.executor_process import new_sequence, plan


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_every_field_of_a_plan_arrives() -> None:
    """A column that the translation forgets would show here."""
    new = new_sequence(
        1, [5, 6], num_cached_tokens=1, temperature=0.5, top_k=4, stop_token_ids=[9], logit_bias_ids=[3], logit_bias_values=[2.0]
    )
    wire = plan(
        step_id=3, session_epoch=4, cohort_id=5, based_on_result_step=2, freed_slots=[7], aborted_slots=[6], new_sequences=[new],
        slot=[1, 2], row_kind=[1, 3], num_tokens=[2, 1], start=[0, 0], block_row=[0], block_id=[9],
        copy_src=[1], copy_dst=[2], want_digests=True,
    )  # fmt: skip
    got = plan_of(wire, max_num_seqs=8)
    assert (got.step_id, got.session_epoch, got.grant_id, got.cohort_id) == (3, 4, 7, 5)
    assert (got.cache_op, got.layout, got.advance) == (1, 1, 2)
    assert (got.freed_slots, got.aborted_slots, got.want_digests, got.repeat_rows) == ([7], [6], True, False)
    columns = (got.slots, got.row_kinds, got.num_tokens, got.starts, got.block_rows, got.block_ids, got.copy_src, got.copy_dst)
    assert [column.tolist() for column in columns] == [[1, 2], [1, 3], [2, 1], [0, 0], [0], [9], [1], [2]]
    entering = got.new_sequences[0]
    assert (entering.slot, entering.token_ids.tolist(), entering.num_prompt_tokens, entering.num_cached_tokens) == (1, [5, 6], 2, 1)
    assert (entering.sampling.temperature, entering.sampling.top_k, entering.sampling.stop_token_ids) == (0.5, 4, (9,))
    assert (entering.sampling.bias_ids, entering.sampling.bias_values) == ((3,), (2.0,))


def test_zeros_that_mean_not_set_are_resolved() -> None:
    sampling = plan_of(plan(step_id=1, new_sequences=[new_sequence(0, [5])]), max_num_seqs=8).new_sequences[0].sampling
    assert (sampling.top_p, sampling.repetition_penalty, sampling.temperature) == (1.0, 1.0, 0.0)


def test_numbers_beyond_31_bits_saturate() -> None:
    got = plan_of(plan(step_id=1, slot=[2**32 - 1], row_kind=[3], num_tokens=[2**31], start=[5]), max_num_seqs=8)
    assert (got.slots.tolist(), got.num_tokens.tolist()) == ([2**31 - 1], [2**31 - 1])


def test_a_usual_result_is_small_and_an_unusual_one_is_whole() -> None:
    usual = StepResult(1, 2, num_emitted=i32(1, 1), token_ids=i32(8, 9), lengths=i32(4, 5))
    assert not result_to_wire(usual).num_emitted
    score = Logprobs(i32(8), np.array([-1.5], np.float32), np.array([[8, 3]], np.int32), np.array([[-1.5, -2.0]], np.float32))
    unusual = StepResult(
        3, 4, num_emitted=i32(1, 0, 0), token_ids=i32(8), lengths=i32(4, 0, 0), finished=[(0, 1)], skipped=[1],
        row_errors=[(2, "internal", "why")], logprobs={0: score}, prompt_logprobs={0: score},
        digest=np.array([2**64 - 1, 0, 0], np.uint64), num_copied_on_write=2, num_blocks_in_use=6,
        queue_ns=1, assemble_ns=2, forward_ns=3, sample_ns=4, idle_ns=5,
    )  # fmt: skip
    wire = plans.StepResult.FromString(result_to_wire(unusual).SerializeToString())
    assert (list(wire.num_emitted), list(wire.token_ids), list(wire.length)) == ([1, 0, 0], [8], [4, 0, 0])
    assert (list(wire.finished_row), list(wire.finish_reason), list(wire.skipped_row)) == ([0], [1], [1])
    assert (wire.row_errors[0].row, wire.row_errors[0].error.code, wire.row_errors[0].error.message) == (2, "internal", "why")
    assert (wire.logprobs[0].row, list(wire.logprobs[0].top_token_ids), wire.logprobs[0].num_top) == (0, [8, 3], 2)
    assert (list(wire.digest), wire.copies.copy_on_write, wire.num_blocks_in_use) == ([2**64 - 1, 0, 0], 2, 6)
    timing = wire.timing
    assert (timing.queue_ns, timing.assemble_ns, timing.forward_ns, timing.sample_ns, timing.idle_ns) == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("more", [{}, {"lead_pad": i32(0, 3), "copies": CopyCounts(cache_in=4)}], ids=["steady", "dense"])
def test_a_usual_result_has_no_field_that_sends_the_scheduler_down_its_slow_way(more) -> None:
    """Every result says how rows move; taken for a rare column, that alone made reading one 1.7 times as slow."""
    usual = StepResult(1, 2, num_emitted=i32(1, 1), token_ids=i32(8, 9), lengths=i32(4, 5), num_blocks_in_use=2, queue_ns=1, **more)
    assert not scheduler_wire._has_rare_columns(result_to_wire(usual))


COMMON = frozenset(
    {
        *("step_id", "session_epoch", "token_ids", "length", "timing", "num_blocks_in_use"),
        *("advance", "lead_pad", "copies", "digest"),  # an executor's own account, which the core does not read
        "num_accepted",  # what a row emitted says the same
    }
)


@pytest.mark.parametrize("name", sorted({field.name for field in plans.StepResult.DESCRIPTOR.fields} - COMMON))
def test_every_other_field_is_read(name) -> None:
    """A field that is added later is either named above or makes the scheduler look."""
    wire = plans.StepResult()
    column = getattr(wire, name)
    if wire.DESCRIPTOR.fields_by_name[name].message_type is None:
        column.append(1)
    else:
        column.add()
    assert scheduler_wire._has_rare_columns(wire)


def test_a_result_without_rows_is_no_result_of_ones() -> None:
    empty = StepResult(1, 2, num_emitted=i32(), token_ids=i32(), lengths=i32())
    assert result_to_wire(empty).ByteSize() < 40


def test_capabilities_leave_nothing_unsaid() -> None:
    backend = FakeBackend(FakeOptions())
    caps = capabilities(backend.model, backend.info, instance_id="x")
    unsaid = {field.name for field in GetCapabilitiesResponse.DESCRIPTOR.fields} - {field.name for field, _ in caps.ListFields()}
    assert unsaid == {"mtp_depth", "rank", "kv_cache_dtype"}, "the fake drafts nothing, is alone and has no keys"
    assert model_to_wire(backend.model).HasField("bos_token_id")
