"""A recording that was changed at random is refused cleanly or read as a correct prefix; nothing else ever happens."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.trace.frames import Frame, Header, Kind, UnreadableRecording
from drumline.trace.reader import Segment
from drumline.trace.writer import SegmentWriter

u63 = st.integers(0, 2**63 - 1)
payloads = st.one_of(
    st.tuples(st.just(Kind.TICK), st.tuples(u63, u63)),
    st.tuples(st.just(Kind.PLAN), st.tuples(u63, st.binary(max_size=200))),
    st.tuples(st.just(Kind.ABORT), st.tuples(st.lists(u63, max_size=5))),
    st.tuples(st.just(Kind.LOST), st.tuples(u63, st.text(max_size=20))),
)
batches = st.lists(st.lists(st.tuples(payloads, u63), max_size=6), max_size=5)


def written(path: Path, groups: list[list[tuple[tuple[Kind, tuple[object, ...]], int]]]) -> list[Frame]:
    writer = SegmentWriter(path, Header(session_epoch=1, segment=0, wall_ns=1, mono_ns=1))
    made = [[(kind, t_ns, list(payload)) for (kind, payload), t_ns in group] for group in groups]
    for group in made:
        writer.write(group)
    writer.close("closed", t_ns=0)
    return [Frame(kind, t_ns, payload) for group in made for kind, t_ns, payload in group]


@given(batches)
@settings(deadline=None, max_examples=30)
def test_round_trip(groups: list[list[tuple[tuple[Kind, tuple[object, ...]], int]]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "0000.trace"
        frames = written(path, groups)
        assert list(Segment(path)) == frames


@given(batches, st.data())
@settings(deadline=None, max_examples=120)
def test_a_mutation_is_refused_or_leaves_a_prefix(
    groups: list[list[tuple[tuple[Kind, tuple[object, ...]], int]]], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "0000.trace"
        frames = written(path, groups)
        raw = bytearray(path.read_bytes())
        how = data.draw(st.sampled_from(["flip", "cut", "insert", "delete", "swap", "append"]))
        at = data.draw(st.integers(0, len(raw) - 1))
        size = data.draw(st.integers(1, 40))
        if how == "flip":
            raw[at] ^= data.draw(st.integers(1, 255))
        elif how == "cut":
            del raw[at:]
        elif how == "insert":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=40))
        elif how == "delete":
            del raw[at : at + size]
        elif how == "swap":
            raw[at : at + size] = raw[at : at + size][::-1]
        else:
            raw += data.draw(st.binary(min_size=1, max_size=40))
        path.write_bytes(raw)
        try:
            found = list(Segment(path))
        except UnreadableRecording as refusal:
            found = []
            leaked = folder in str(refusal)
        else:
            leaked = False
        assert not leaked, "a refusal names the file, never a directory"
        if found:
            assert found == frames[: len(found)]


@given(st.binary(max_size=400))
@settings(deadline=None)
def test_b093_random_bytes_are_refused(raw: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "0000.trace"
        path.write_bytes(raw)
        with pytest.raises(UnreadableRecording):
            Segment(path)
