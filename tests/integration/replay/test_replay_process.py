"""`drumline replay` over real processes: 0 differences, and when something was changed, the first step, row and field."""

import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.plan.v1.plan_pb2 import StepPlan, StepResult
from drumline.trace.frames import Frame, Kind
from drumline.trace.reader import Recording, Segment, open_recordings
from drumline.trace.writer import SegmentWriter
from executor_svc.backends.fake import FakeOptions
from launcher import replay, trace
from scheduler_svc.replay.executor import Options, executors_of, replay_on_executor
from tests.integration.replay.conftest import FLAGS, SAME_MODEL, record
from tests.support.executor_process import ExecutorProcess
from tests.support.recorded_session import Session, mixed, prompt

Change = Callable[[Frame], Frame]


def rewritten(recording: Path, folder: Path, change: Change) -> Path:
    """The recording with changed frames and right checksums: what somebody who lies would hand in."""
    folder.mkdir()
    [whole] = open_recordings([recording])
    writer = SegmentWriter(folder / "0000.trace", whole.header)
    frames = [change(frame) for frame in whole]
    writer.write([(frame.kind, frame.t_ns, frame.payload) for frame in frames])
    writer.close("closed", t_ns=0)
    return folder


def run(door: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str]:
    status = door([str(word) for word in argv])
    out = capsys.readouterr().out
    return status, re.sub(r"\s+", " ", out)


def test_replay_on_a_fresh_executor_has_0_differences(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(replay.main, capsys, recording, *SAME_MODEL)
    assert status == 0, out
    assert re.search(r"executor 1: \d\d+ steps, \d+ rows, \d{3,} tokens: 0 differences", out)
    assert "audit: 0 findings" in out


def test_plans_against_a_fresh_scheduler_are_byte_identical(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(replay.main, capsys, recording, "--against", "scheduler")
    assert status == 0, out
    assert re.search(r"\d\d+ plans, byte-identical: 0 differences", out)


def test_a_flipped_token_is_located_at_its_step_and_row(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[int] = []

    def flip(frame: Frame) -> Frame:
        if frame.kind is not Kind.RESULT or told:
            return frame
        result = StepResult.FromString(frame.payload[1])
        counts = list(result.num_emitted) or [1] * len(result.token_ids)
        if result.step_id < 20 or counts[:1] != [1] or len(counts) < 2 or counts[1] != 1:
            return frame
        told.extend((result.step_id, result.token_ids[1]))
        result.token_ids[1] ^= 1
        return replace(frame, payload=[frame.payload[0], result.SerializeToString()])

    status, out = run(replay.main, capsys, rewritten(recording, tmp_path / "d", flip), *SAME_MODEL)
    assert status == 1, out
    step, token = told
    assert f"executor 1 step {step} row 1 " in out
    assert f"field token_ids: recorded [{token ^ 1}], replayed [{token}]" in out


def test_a_changed_plan_is_named_by_field(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(frame: Frame) -> Frame:
        if frame.kind is not Kind.PLAN:
            return frame
        plan = StepPlan.FromString(frame.payload[1])
        if plan.step_id == 9:
            plan.cohort_id += 1
        return replace(frame, payload=[frame.payload[0], plan.SerializeToString()])

    status, out = run(replay.main, capsys, rewritten(recording, tmp_path / "d", change), "--against", "scheduler")
    assert status == 1
    assert "8 plans byte-identical, then: executor 1 step 9 field cohort_id" in out


def test_until_and_dump_row(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(replay.main, capsys, recording, *SAME_MODEL, "--until", 12, "--dump-row", 0)
    assert status == 0, out
    assert "executor 1: 12 steps" in out
    for word in ("block table", "sampling", "step 12 recorded", "step 12 replayed", "prompt", "positions"):
        assert word in out


def test_a_running_executor_can_be_used_whatever_its_epoch(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ExecutorProcess(*FLAGS) as executor:
        for _ in range(2):
            status, out = run(replay.main, capsys, recording, "--executor", executor.target)
            assert status == 0, out
    with ExecutorProcess(*FLAGS, "--fake-eos-chance", "0.5") as other:
        status = replay.main([str(recording), "--executor", other.target])
        assert status == 2
        assert "model_digest" in capsys.readouterr().err


def test_b093_what_is_no_recording_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "0000.trace").write_bytes(b"\x80\x04\x95 not a recording")
    for argv in ([tmp_path], [tmp_path / "absent"], [tmp_path / "0000.trace", "--against", "scheduler"]):
        assert replay.main([str(word) for word in argv]) == 2
        err = capsys.readouterr().err
        assert "Traceback" not in err
        assert str(tmp_path) not in err
    assert replay.main(["--no-such-flag", str(tmp_path)]) == 2
    capsys.readouterr()


def test_a_killed_scheduler_leaves_a_recording_that_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = record(tmp_path / "d", end=signal.SIGKILL)
    [found] = open_recordings([folder])
    assert sum(frame.kind is Kind.PLAN for frame in found) > 5
    assert found.ending == "cut off"
    status, out = run(replay.main, capsys, folder, *SAME_MODEL)
    assert status == 0, out


def test_a_segment_from_mid_session_replays(tmp_path: Path) -> None:
    options = FakeOptions(num_blocks=24, max_num_seqs=6, max_num_batched_tokens=64, max_model_len=200)
    session = Session(tmp_path, options=options, segment_bytes=3000)
    shared = prompt(99, 50)
    for index in range(16):
        own = prompt(index, 5 + 3 * index)
        session.submit([[*shared, *own] if index % 2 else own], max_tokens=12 + index, temperature=0.5 * (index % 3))
        for _ in range(3):
            session.step()
        session.recorder._sink._wake.set()
        session.recorder._sink._thread.join(0.02)
    session.run()
    session.close()
    files = sorted(tmp_path.glob("*.trace"))
    assert len(files) > 4
    middle = Recording([Segment(path) for path in files[len(files) // 2 :]])
    [(executor_id, caps)] = executors_of(middle).items()
    outcome = replay_on_executor(
        middle, executor_id, caps, options=Options(extra=["--fake-eos-chance", "0"]), progress=lambda done: None
    )
    assert (outcome.differences, outcome.error) == ([], "")
    assert outcome.num_steps > 10


def test_trace_tells_what_happened(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(trace.main, capsys, "show", recording)
    assert status == 0
    assert "limits max_waiting_requests" in out
    status, out = run(trace.main, capsys, "show", recording, "--step", 5)
    assert status == 0
    assert "executor 1 step 5" in out
    status, out = run(trace.main, capsys, "explain", "withdrawn", recording)
    assert status == 0
    assert "withdrawn" in out
    assert "ended" in out
    assert trace.main(["explain", "nobody", str(recording)]) == 2
    assert "x-request-id" in capsys.readouterr().err
    status, out = run(trace.main, capsys, "export", recording, "--perfetto", tmp_path / "t.json")
    assert status == 0
    import json

    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} >= {"M", "X", "b", "e"}
    assert all(event["dur"] > 0 for event in events if event["ph"] == "X")


def test_what_if_is_tagged_as_simulated(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(replay.main, capsys, recording, "--what-if", "max_num_seqs=2")
    assert status == 0, out
    assert "sim: max_num_seqs=2" in out
    status, out = run(replay.main, capsys, recording, "--what-if", "admission=bucketed")
    assert status == 0, out
    assert "sim: admission=bucketed" in out
    for words, named in (("admission=fifo", "bucketed"), ("layout=aligned", "aligned")):
        assert replay.main([str(recording), "--what-if", words]) == 2
        assert named in capsys.readouterr().err
    assert replay.main([str(recording), "--what-if", "max_seqs=2"]) == 2
    assert "max_num_seqs" in capsys.readouterr().err


def test_two_recordings_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        session = Session(tmp_path / name, epoch=seed)
        mixed(session, num_requests=5, seed=seed)
        session.close()
    assert run(trace.main, capsys, "diff", tmp_path / "a", tmp_path / "b")[0] == 0
    status, out = run(trace.main, capsys, "diff", tmp_path / "a", tmp_path / "c")
    assert status == 1
    assert "ARRIVAL 1: sequences[0]" in out
    assert "request req-1 output token" in out


def test_the_ring_of_a_fault_replays_from_its_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(tmp_path / "d", ring_frames=120)
    mixed(session, seed=4)
    path = session.recorder.dump("somebody asked")
    session.close()
    [ring] = open_recordings([path])
    frames = list(ring)
    assert frames[0].kind is Kind.SNAPSHOT
    assert len(frames) <= 130
    assert ring.ending == "somebody asked"
    status, out = run(replay.main, capsys, path, "--against", "scheduler")
    assert status == 0, out
    status, out = run(replay.main, capsys, path, *SAME_MODEL)
    assert status == 0, out


def test_b093_right_checksums_around_nonsense_are_refused(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, kind in enumerate((Kind.PLAN, Kind.ARRIVAL, Kind.HANDSHAKE, Kind.RESULT)):

        def spoil(frame: Frame, kind: Kind = kind) -> Frame:
            return frame if frame.kind is not kind else replace(frame, payload=[*frame.payload[:-1], b"\xff\xff\xff"])

        folder = rewritten(recording, tmp_path / str(number), spoil)
        assert replay.main([str(folder), "--against", "scheduler"]) == 2
        assert "cannot be understood: DecodeError" in capsys.readouterr().err
    writer = SegmentWriter(tmp_path / "s.trace", open_recordings([recording])[0].header)
    writer.write([(Kind.SNAPSHOT, 0, [b"\x80", [[1, "a", b"", []]]])])
    writer.close("closed", t_ns=0)
    for argv in ([], ["--against", "scheduler"]):
        assert replay.main([str(tmp_path / "s.trace"), *argv]) == 2
        assert "Traceback" not in capsys.readouterr().err
