"""Recording files: what is written is read, and everything else is a clean refusal or a correct prefix (B093)."""

import os
import pickle
import stat
import struct
import zlib
from pathlib import Path

import msgpack
import pytest
import zstandard

from drumline.trace import blocks
from drumline.trace.frames import Header, Kind, UnreadableRecording, pack_frame
from drumline.trace.reader import CUT_OFF, Recording, Segment, open_recordings
from drumline.trace.writer import SegmentWriter


def header(*, segment: int = 0, epoch: int = 7) -> Header:
    return Header(session_epoch=epoch, segment=segment, wall_ns=1, mono_ns=2, model_digest="abc", settings={"limits": {"a": 1}})


def write(path: Path, *, num_frames: int = 10, segment: int = 0, epoch: int = 7, end: str = "closed") -> Path:
    writer = SegmentWriter(path, header(segment=segment, epoch=epoch))
    for index in range(num_frames):
        writer.write([(Kind.TICK, index, [1, index]), (Kind.PLAN, index, [1, b"p" * index])])
    if end:
        writer.close(end, t_ns=99)
    else:
        writer.abandon()
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    segment = Segment(write(tmp_path / "0000.trace"))
    frames = list(segment)
    assert [frame.payload for frame in frames[:4]] == [[1, 0], [1, b""], [1, 1], [1, b"p"]]
    assert len(frames) == 20
    assert segment.ending == "closed"
    assert segment.header == header()
    assert list(segment) == frames, "a segment can be read again"


def test_files_and_directories_are_the_owner_s_alone(tmp_path: Path) -> None:
    from drumline.trace.writer import make_directory

    make_directory(tmp_path / "d")
    path = write(tmp_path / "d" / "0000.trace")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_cut_off_anywhere_reads_to_its_last_whole_block(tmp_path: Path) -> None:
    whole = write(tmp_path / "0000.trace", num_frames=4).read_bytes()
    reference = list(Segment(tmp_path / "0000.trace"))
    cut = tmp_path / "cut.trace"
    seen = set()
    for size in range(len(whole)):
        cut.write_bytes(whole[:size])
        try:
            segment = Segment(cut)
        except UnreadableRecording:
            continue
        frames = list(segment)
        assert frames == reference[: len(frames)]
        assert segment.ending == CUT_OFF
        seen.add(len(frames))
    assert seen == {0, 2, 4, 6, 8}


def test_every_flipped_byte_is_refused_by_name(tmp_path: Path) -> None:
    whole = write(tmp_path / "0000.trace", num_frames=3).read_bytes()
    flipped = tmp_path / "flipped.trace"
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x40
        flipped.write_bytes(changed)
        with pytest.raises(UnreadableRecording, match=r"flipped\.trace"):
            list(Segment(flipped))


def test_b093_a_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    path = tmp_path / "0000.trace"
    marker = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(marker),)

    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UnreadableRecording, match="not a recording"):
        Segment(path)
    path.write_bytes(blocks.MAGIC + pickle.dumps(Bomb()))
    with pytest.raises(UnreadableRecording):
        Segment(path)
    assert not marker.exists()


def forge(path: Path, *, stored: int, raw: int, body: bytes) -> Path:
    """A file with right checksums whose first frame block lies about its sizes."""
    good = write(path, num_frames=0, end="").read_bytes()
    previous = Segment(path)._digest
    lengths = struct.pack("<III", stored, raw, 1)
    digest = blocks._digest(previous, lengths, body)
    path.write_bytes(good + lengths + struct.pack("<I", zlib.crc32(lengths)) + digest + body)
    return path


def test_b093_a_file_that_declares_gigabytes_is_refused_before_allocation(tmp_path: Path) -> None:
    body = zstandard.ZstdCompressor().compress(b"x")
    with pytest.raises(UnreadableRecording, match="limit"):
        list(Segment(forge(tmp_path / "a.trace", stored=len(body), raw=2**32 - 1, body=body)))
    bomb = zstandard.ZstdCompressor().compress(bytes(200_000_000))
    with pytest.raises(UnreadableRecording, match="zstd frame declares 200000000"):
        list(Segment(forge(tmp_path / "b.trace", stored=len(bomb), raw=100, body=bomb)))
    endless = b"\x28\xb5\x2f\xfd\x00\x58" + bytes(32)
    with pytest.raises(UnreadableRecording):
        list(Segment(forge(tmp_path / "c.trace", stored=len(endless), raw=100, body=endless)))


@pytest.mark.parametrize(
    "raw",
    [
        msgpack.packb([99, 0, []]),
        msgpack.packb([int(Kind.PLAN), 0, ["no", "bytes"]]),
        msgpack.packb([int(Kind.PLAN), 0, [1]]),
        msgpack.packb("frame"),
        msgpack.packb([int(Kind.PLAN), 0, [msgpack.ExtType(3, b""), b""]]),
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"\xc1",
        pack_frame(Kind.DRAIN, 0, [1]) * 2,
        b"",
    ],
)
def test_b093_frames_of_another_shape_are_refused(tmp_path: Path, raw: bytes) -> None:
    body = zstandard.ZstdCompressor().compress(raw)
    path = forge(tmp_path / "f.trace", stored=len(body), raw=len(raw), body=body)
    with pytest.raises(UnreadableRecording, match=r"f\.trace: block 1"):
        list(Segment(path))


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0000.trace")
    with pytest.raises(UnreadableRecording, match="regular file"):
        open_recordings([tmp_path])
    with pytest.raises(UnreadableRecording):
        open_recordings([tmp_path / "absent.trace"])


def test_a_newer_format_is_refused_by_version(tmp_path: Path) -> None:
    from dataclasses import replace

    writer = SegmentWriter(tmp_path / "0000.trace", replace(header(), trace_version=2))
    writer.abandon()
    with pytest.raises(UnreadableRecording, match="trace version 2; this release reads 1 to 1"):
        Segment(tmp_path / "0000.trace")


def test_segments_are_joined_by_session_and_a_gap_is_named(tmp_path: Path) -> None:
    for segment in range(3):
        write(tmp_path / f"{segment:04d}.trace", segment=segment, num_frames=2, end="rotated" if segment < 2 else "closed")
    write(tmp_path / "0003.trace", epoch=9, num_frames=1)
    first, second = open_recordings([tmp_path])
    assert len(list(first)) == 12
    assert len(list(second)) == 2
    (tail,) = open_recordings([tmp_path / "0001.trace", tmp_path / "0002.trace"])
    assert tail.header.segment == 1
    with pytest.raises(UnreadableRecording, match="missing between 0000"):
        open_recordings([tmp_path / "0000.trace", tmp_path / "0002.trace"])
    with pytest.raises(UnreadableRecording, match="different sessions"):
        Recording([Segment(tmp_path / "0000.trace"), Segment(tmp_path / "0003.trace")])
