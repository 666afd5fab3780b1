"""Counting steps in a recording: what is a decode step, what is a steady one, what was copied. Rows E16 to E18 of domain.md."""

from pathlib import Path

from bench.steps import Step, full_step_ms, read_steps, steps_in, summary_of, within
from drumline.plan.v1 import plan_pb2 as pb
from drumline.trace.frames import Frame, Kind

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "recordings" / "control.trace"
PREFILL, DECODE = pb.ROW_KIND_PREFILL_LAST, pb.ROW_KIND_DECODE


def plan(t_ns: int, slots: list[int] | None = None, *, kind: "pb.RowKind.ValueType" = DECODE, enter: int | None = None) -> Frame:
    message = pb.StepPlan(repeat_rows=slots is None, slot=slots or [], row_kind=[kind] * len(slots or []))
    if enter is not None:
        message.new_sequences.add(slot=enter)
    return Frame(Kind.PLAN, t_ns, [1, message.SerializeToString()])


def result(t_ns: int, *, copies: int = 0, needless: int = 0, forward_ns: int = 0, skipped: tuple[int, ...] = ()) -> Frame:
    message = pb.StepResult(skipped_row=skipped, timing=pb.StepTiming(forward_ns=forward_ns))
    if copies or needless:
        message.copies.cache_in, message.copies.needless_in = copies, needless
    return Frame(Kind.RESULT, t_ns, [1, message.SerializeToString()])


def test_a_step_is_steady_when_the_decode_step_right_before_it_had_its_rows() -> None:
    frames = [
        *(plan(0, [0, 1], kind=PREFILL, enter=0), result(1)),
        *(plan(2, [0, 1]), result(3, copies=8)),
        *(plan(4), result(5)),
        *(plan(6), result(7)),
        *(plan(8, [0, 2], kind=PREFILL, enter=2), result(9)),
        *(plan(10, [0, 1]), result(11, copies=8)),
        *(plan(12, [1]), result(13, copies=4)),
    ]
    steps = list(steps_in(frames))
    assert [step.decode for step in steps] == [False, True, True, True, False, True, True]
    assert [step.steady for step in steps] == [False, False, True, True, False, False, False]
    assert [step.num_rows for step in steps] == [2, 2, 2, 2, 2, 2, 1]


def test_two_plans_in_flight_meet_their_own_results() -> None:
    frames = [plan(0, [0]), plan(1), result(10, copies=1), plan(11), result(20, copies=2), result(30, copies=3)]
    assert [(step.planned_ns, step.answered_ns, step.copies) for step in steps_in(frames)] == [(0, 10, 1), (1, 20, 2), (11, 30, 3)]


def test_a_lost_executor_answers_none_of_its_plans() -> None:
    frames = [plan(0, [0]), Frame(Kind.LOST, 1, [1, "gone"]), plan(2, [0]), result(3, copies=5)]
    assert [step.copies for step in steps_in(frames)] == [5]


def test_e18_copies_and_rates_of_a_stretch() -> None:
    """2256 = 47 rows x 24 layers x 2, in every steady step of the stripped layout."""
    steps = list(steps_in([plan(0, list(range(47))), result(1, copies=2256), plan(2), result(9, copies=2256, forward_ns=10**9)]))
    assert summary_of(steps).steady_copies == 2256
    assert summary_of(steps).copies_per_row == 48
    assert summary_of(within(steps, since_ns=2, until_ns=9)).decode_tokens_per_s == 47
    assert within(steps, since_ns=1, until_ns=8) == []


def test_full_steps_are_steady_ones_with_all_rows() -> None:
    frames = [
        plan(0, [0, 1]),
        result(1, forward_ns=9),
        plan(2),
        result(3, forward_ns=2 * 10**6),
        plan(4, [1]),
        result(5),
        plan(6),
        result(7),
    ]
    assert full_step_ms(list(steps_in(frames)), num_rows=2) == 2.0
    assert full_step_ms(list(steps_in(frames)), num_rows=3) is None


def test_skipped_rows_are_no_tokens() -> None:
    [step] = steps_in([plan(0, [0, 1, 2]), result(1, skipped=(1,))])
    assert step.num_rows == 2


def test_d18_of_nothing_nothing_is_known() -> None:
    summary = summary_of([])
    assert summary.num_steps == 0
    rates = (
        summary.decode_tokens_per_s,
        summary.decode_rows,
        summary.copies_per_step,
        summary.steady_copies,
        summary.copies_per_row,
    )
    assert rates == (None,) * 5


def test_a_recording_of_the_real_scheduler_reads(tmp_path: Path) -> None:
    (tmp_path / FIXTURE.name).write_bytes(FIXTURE.read_bytes())
    steps = read_steps(tmp_path)
    assert any(step.decode for step in steps)
    assert any(not step.decode for step in steps)
    assert all(isinstance(step, Step) and step.planned_ns <= step.answered_ns and step.num_rows > 0 for step in steps)
    assert {step.copies for step in steps} == {0}, "paged rows are never copied"
