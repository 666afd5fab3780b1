"""The recorder: off the hot path, rotating at snapshots, with a ring that always replays from its start."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from drumline.trace.frames import Kind, unpack_state
from drumline.trace.reader import CUT_OFF, Segment, open_recordings
from drumline.trace.sink import SegmentSink
from scheduler_svc.recording import FileRecorder

CAPS = GetCapabilitiesResponse(model_digest="abc", num_blocks=8).SerializeToString()


class Still:
    """A state that does not change, as `freeze` gives it."""

    num_bytes = 50

    def __init__(self, data: object) -> None:
        self._data = data

    def data(self) -> object:
        if isinstance(self._data, Exception):
            raise self._data
        return self._data


def make(folder: Path | None, faults: Path, **kwargs: object) -> FileRecorder:
    state = {"n": 0}

    def freeze() -> Still:
        state["n"] += 1
        return Still({"n": state["n"], 5: [GetCapabilitiesResponse(model_name="x")]})

    return FileRecorder(
        session_epoch=3,
        freeze=freeze,
        settings={"limits": {"max_num_seqs": 4}},
        directory=folder,
        fault_directory=faults,
        **kwargs,
    )  # type: ignore[arg-type]


def steps(recorder: FileRecorder, num_steps: int, *, size: int = 10) -> None:
    for step in range(num_steps):
        recorder.tick(1, step)
        recorder.plan(1, b"p" * size)
        if step:
            recorder.result(1, b"r" * size)


def test_segments_rotate_at_a_snapshot_and_read_as_one(tmp_path: Path) -> None:
    recorder = make(tmp_path / "d", tmp_path / "f", segment_bytes=2000)
    recorder.handshake(1, "a:1", CAPS)
    import os

    for step in range(60):
        recorder.tick(1, step)
        recorder.plan(1, os.urandom(200))
        recorder.result(1, b"r")
        if step % 10 == 9:
            recorder._sink._wake.set()
            time.sleep(0.05)
    recorder.close()
    (recording,) = open_recordings([tmp_path / "d"])
    assert len(recording.segments) > 2
    frames = list(recording)
    assert sum(frame.kind is Kind.PLAN for frame in frames) == 60
    assert recording.ending == "closed"
    for segment in recording.segments[1:]:
        first = next(iter(segment))
        assert first.kind is Kind.SNAPSHOT
        assert segment.header.model_digest == "abc"
        assert list(segment)[1].kind is Kind.TICK, "a segment begins between steps"
        state = unpack_state(first.payload[0])
        assert state[5][0] == GetCapabilitiesResponse(model_name="x").SerializeToString()
        assert first.payload[1][0][:3] == [1, "a:1", CAPS]


def test_a_killed_recorder_loses_at_most_half_a_second(tmp_path: Path) -> None:
    recorder = make(tmp_path / "d", tmp_path / "f")
    recorder.handshake(1, "a:1", CAPS)
    steps(recorder, 50)
    time.sleep(0.8)
    segment = Segment(tmp_path / "d" / "0000.trace")
    assert sum(frame.kind is Kind.PLAN for frame in segment) == 50
    assert segment.ending == CUT_OFF
    recorder.close()
    list(segment)
    assert segment.ending == "closed"


def test_the_ring_is_bounded_and_begins_with_a_snapshot(tmp_path: Path) -> None:
    recorder = make(None, tmp_path / "f", ring_frames=100)
    recorder.handshake(1, "a:1", CAPS)
    steps(recorder, 500)
    path = recorder.dump("a worker vanished")
    assert path is not None
    (recording,) = open_recordings([path])
    frames = list(recording)
    assert 50 <= len(frames) <= 110
    assert frames[0].kind is Kind.SNAPSHOT
    assert recording.ending == "a worker vanished"
    assert recording.header.segment == -1
    assert path.stat().st_mode & 0o777 == 0o600


def test_snapshots_do_not_come_more_often_where_there_are_more_executors(tmp_path: Path) -> None:
    """Each is of all executors: at one rate of frames a snapshot, their cost would grow with the square of the fleet."""
    recorder = make(None, tmp_path / "f", ring_frames=100)
    for executor_id in range(1, 5):
        recorder.handshake(executor_id, f"a:{executor_id}", CAPS)
    steps(recorder, 500)
    kinds = [frame[0] for frame in recorder._ring.frames()]
    assert 200 <= len(kinds) <= 410
    for executor_id in range(2, 5):
        recorder.lost(executor_id, "gone")
    steps(recorder, 500)
    assert len(list(recorder._ring.frames())) <= 110


def test_losing_most_of_a_fleet_does_not_cut_the_ring_before_its_next_snapshot(tmp_path: Path) -> None:
    """What was dumped right after would have begun with frames that no snapshot explains."""
    recorder = make(None, tmp_path / "f", ring_frames=100)
    for executor_id in range(16):
        recorder.handshake(executor_id, f"a:{executor_id}", CAPS)
    steps(recorder, 1)
    for step in range(700):
        recorder.result(step % 16, b"")
    for executor_id in range(1, 16):
        recorder.lost(executor_id, "gone")
    kinds = [frame[0] for frame in recorder._ring._new]
    assert kinds.count(Kind.RESULT) >= 700
    steps(recorder, 1)
    assert [frame[0] for frame in recorder._ring._new].count(Kind.SNAPSHOT) == 1


def test_a_snapshot_larger_than_the_ring_is_not_followed_by_another_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Still, "num_bytes", 200_000)
    recorder = make(None, tmp_path / "f", ring_frames=100, ring_bytes=100_000)
    recorder.handshake(1, "a:1", CAPS)
    steps(recorder, 500)
    kinds = [frame[0] for frame in recorder._ring.frames()]
    assert kinds.count(Kind.SNAPSHOT) == 2
    assert len(kinds) >= 50


def test_the_ring_of_a_short_session_holds_all_of_it(tmp_path: Path) -> None:
    recorder = make(None, tmp_path / "f")
    recorder.handshake(1, "a:1", CAPS)
    steps(recorder, 5)
    (recording,) = open_recordings([recorder.dump("x") or tmp_path])
    assert [frame.kind for frame in recording][:3] == [Kind.HANDSHAKE, Kind.TICK, Kind.PLAN]


def test_the_ring_is_bounded_in_bytes_even_when_no_step_comes(tmp_path: Path) -> None:
    recorder = make(None, tmp_path / "f", ring_bytes=100_000)
    for key in range(1000):
        recorder.arrival(key, 0, 0, b"s" * 1000)
    assert sum(len(frame[2][3]) for frame in recorder._ring.frames()) <= 400_000


def test_dumps_are_counted(tmp_path: Path) -> None:
    recorder = make(None, tmp_path / "f")
    paths = [recorder.dump("again") for _ in range(30)]
    assert sum(path is not None for path in paths) == 16


def test_a_full_disk_stops_the_recording_not_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    recorder = make(tmp_path / "d", tmp_path / "f")
    monkeypatch.setattr("drumline.trace.writer.os.write", full)
    recorder.handshake(1, "a:1", CAPS)
    steps(recorder, 5)
    recorder.close()
    assert recorder.stopped == "No space left on device"
    steps(recorder, 5)


def test_a_slow_disk_stops_the_recording_not_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The core's thread gives up while the writer's is in the middle of what has piled up; neither may stumble over the other."""
    disk = threading.Event()
    write = os.write

    def slow(*args: Any) -> int:
        disk.wait(10)
        return write(*args)

    monkeypatch.setattr("drumline.trace.sink.MAX_PENDING_BYTES", 100_000)
    recorder = make(tmp_path / "d", tmp_path / "f")
    monkeypatch.setattr("drumline.trace.writer.os.write", slow)
    recorder.handshake(1, "a:1", CAPS)
    recorder._sink._wake.set()
    while not recorder.stopped:
        recorder.arrival(1, 0, 0, b"s" * 1000)
    disk.set()
    recorder.close()
    assert recorder.stopped == "the disk is too slow"
    assert not recorder._sink._pending, "memory is given back"


def test_a_snapshot_that_cannot_be_made_ends_the_files_by_name_and_is_not_tried_at_every_step(tmp_path: Path) -> None:
    num_tries = 0

    def freeze() -> Still:
        nonlocal num_tries
        num_tries += 1
        raise ValueError("too large")

    recorder = make(tmp_path / "d", tmp_path / "f", ring_frames=100)
    recorder._freeze = freeze
    recorder.handshake(1, "a:1", CAPS)
    steps(recorder, 500)
    recorder.close()
    assert (recorder.stopped, num_tries) == ("no snapshot could be made", 1)
    (recording,) = open_recordings([recorder.dump("x") or tmp_path])
    assert 50 <= len(list(recording)) <= 210, "the ring goes on"


def test_a_snapshot_that_cannot_be_packed_ends_the_files_by_name(tmp_path: Path) -> None:
    recorder = make(tmp_path / "d", tmp_path / "f", segment_bytes=200)
    recorder._freeze = lambda: Still(TypeError("of no kind"))
    recorder.handshake(1, "a:1", CAPS)
    for _ in range(100):
        steps(recorder, 5)
        recorder._sink._wake.set()
        time.sleep(0.01)
        if recorder.stopped:
            break
    recorder.close()
    assert recorder.stopped == "no snapshot could be made: TypeError: of no kind"


def test_a_snapshot_that_cannot_be_packed_does_not_take_the_ring_with_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = make(None, tmp_path / "f")
    recorder._freeze = lambda: Still(TypeError("of no kind"))
    recorder.handshake(1, "a:1", CAPS)
    steps(recorder, 5)
    recorder._ring.begin(recorder._snapshot_frame(0)[0])
    steps(recorder, 5)
    path = recorder.dump("it went wrong")
    assert path is not None
    assert {frame.kind for frame in Segment(path)} == {Kind.HANDSHAKE, Kind.TICK, Kind.PLAN, Kind.RESULT}
    assert "without its snapshots: no snapshot could be made: TypeError: of no kind" in caplog.text


def test_a_later_session_goes_on_behind_the_files_of_an_earlier_one(tmp_path: Path) -> None:
    for _ in range(2):
        recorder = make(tmp_path / "d", tmp_path / "f")
        recorder.handshake(1, "a:1", CAPS)
        recorder.close()
    assert sorted(path.name for path in (tmp_path / "d").glob("*.trace")) == ["0000.trace", "0001.trace"]


def test_old_segments_go_when_the_recording_has_its_size(tmp_path: Path) -> None:
    from drumline.trace.frames import Header

    def header(segment: int) -> Header:
        return Header(session_epoch=1, segment=segment, wall_ns=0, mono_ns=0)

    import os

    sink = SegmentSink(tmp_path / "d", header=header, segment_bytes=1000, max_bytes=5000)
    for index in range(30):
        sink.put((Kind.PLAN, index, [1, os.urandom(700)]), num_bytes=700)
        sink.rotate()
    sink.close()
    names = sorted(path.name for path in (tmp_path / "d").glob("*.trace"))
    assert names[-1] == "0030.trace" or names[-1] == "0029.trace"
    assert sum(path.stat().st_size for path in (tmp_path / "d").glob("*.trace")) <= 6500
    (recording,) = open_recordings([tmp_path / "d"])
    assert recording.header.segment > 0
