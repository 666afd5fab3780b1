"""Reads recordings: one segment, or all segments of a session in order.

Every way in which a file can be wrong ends in `UnreadableRecording` naming the file and block, or, for a file cut off in mid-write,
in all of its whole blocks. Nothing is executed, nothing is allocated by a number that was not checked.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from drumline import limits
from drumline.trace import blocks
from drumline.trace.frames import Frame, Header, Kind, UnreadableRecording, unpack_frames, unpack_header

MAX_FILE_BYTES: Final = limits.MAX_TRACE_SEGMENT_BYTES + 2 * blocks.MAX_RAW_BYTES
CUT_OFF: Final = "cut off"


class Segment:
    """One file. The header is read at once, frames by iterating (again and again if wanted).

    Attributes:
        name: the file's name, without its directory.
        header: its header.
        ending: after an iteration, the END frame's reason, or `CUT_OFF`.
    """

    def __init__(self, path: Path) -> None:
        """Raises UnreadableRecording for anything but a regular file that begins as a recording does."""
        self.name = path.name
        self.path = path
        self.ending = CUT_OFF
        with self._open() as file:
            self.header, self._digest, self._start = self._read_header(file)

    def __iter__(self) -> Iterator[Frame]:
        with self._open() as file:
            file.seek(self._start)
            yield from self._frames(file)

    def _open(self) -> BinaryIO:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as failure:
            raise UnreadableRecording(f"{self.name}: {failure.strerror}") from None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            os.close(fd)
            raise UnreadableRecording(f"{self.name}: not a regular file of at most {MAX_FILE_BYTES} bytes")
        return os.fdopen(fd, "rb")

    def _read_header(self, file: BinaryIO) -> tuple[Header, bytes, int]:
        if file.read(len(blocks.MAGIC)) != blocks.MAGIC:
            raise UnreadableRecording(f"{self.name}: not a recording (its first bytes differ)")
        found = self._block(file, previous=blocks.FIRST_DIGEST, index=0)
        if found is None:
            raise UnreadableRecording(f"{self.name}: cut off inside its header")
        head, raw = found
        return unpack_header(raw, name=self.name), head.digest, file.tell()

    def _frames(self, file: BinaryIO) -> Iterator[Frame]:
        self.ending = CUT_OFF
        previous, index, ended = self._digest, 1, False
        while (found := self._block(file, previous=previous, index=index)) is not None:
            head, raw = found
            for frame in unpack_frames(raw, count=head.num_frames, name=f"{self.name}: block {index}"):
                if ended:
                    raise UnreadableRecording(f"{self.name}: block {index} lies behind the end")
                if frame.kind is Kind.END:
                    self.ending, ended = str(frame.payload[0]), True
                else:
                    yield frame
            previous, index = head.digest, index + 1
        if ended and file.tell() != os.fstat(file.fileno()).st_size:
            raise UnreadableRecording(f"{self.name}: bytes behind the end")

    def _block(self, file: BinaryIO, *, previous: bytes, index: int) -> tuple[blocks.Head, bytes] | None:
        """The next block, or None where the file ends or was cut off."""
        name = f"{self.name}: block {index}"
        at = file.tell()
        head_bytes = file.read(blocks.HEAD_BYTES)
        if len(head_bytes) < blocks.HEAD_BYTES:
            file.seek(at)
            return None
        head = blocks.parse_head(head_bytes, name=name)
        if head.stored_bytes > os.fstat(file.fileno()).st_size - file.tell():
            file.seek(at)
            return None
        body = file.read(head.stored_bytes)
        return head, blocks.decode(head, body, previous=previous, name=name)


class Recording:
    """Segments of one session in order; iterating yields all their frames, END frames left out.

    Attributes:
        segments: in order; the first may be any segment of the session (replay starts mid-session at its snapshot).
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        """Refuses a missing segment and a mixture of sessions by name."""
        self.segments = sorted(segments, key=lambda segment: segment.header.segment)
        if not self.segments:
            raise UnreadableRecording("no segments")
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            if before.header.session_epoch != after.header.session_epoch:
                raise UnreadableRecording(f"{before.name} and {after.name} belong to different sessions")
            if after.header.segment != before.header.segment + 1:
                raise UnreadableRecording(f"a segment is missing between {before.name} and {after.name}")

    @property
    def header(self) -> Header:
        """The first segment's."""
        return self.segments[0].header

    @property
    def ending(self) -> str:
        """After an iteration, how the last segment ends."""
        return self.segments[-1].ending

    def __iter__(self) -> Iterator[Frame]:
        for segment in self.segments:
            yield from segment
            if segment is not self.segments[-1] and segment.ending == CUT_OFF:
                raise UnreadableRecording(f"{segment.name} was cut off, but the recording goes on behind it")


def open_recordings(paths: Sequence[Path]) -> list[Recording]:
    """Recordings in files and directories (their `*.trace`), one per session, oldest first. Never empty: raises instead."""
    files: list[Path] = []
    for path in paths:
        files.extend(sorted(path.glob("*.trace")) if path.is_dir() else [path])
    if not files:
        raise UnreadableRecording("no *.trace file there")
    sessions: dict[tuple[int, int], list[Segment]] = {}
    for index, segment in enumerate(Segment(path) for path in files):
        # a dumped ring (segment -1) is a recording of its own
        alone = index + 1 if segment.header.segment < 0 else 0
        sessions.setdefault((segment.header.session_epoch, alone), []).append(segment)
    return [Recording(sessions[key]) for key in sorted(sessions)]
