"""Writes one segment file. Synchronous and single-threaded; whoever records calls it off the hot path."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from drumline import limits
from drumline.trace import blocks
from drumline.trace.frames import Header, Kind, pack_frame, pack_header

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


def make_directory(path: Path) -> None:
    """The directory of a recording, readable by its owner alone; an existing one is left as it is."""
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)


class SegmentWriter:
    """Appends frames to a new file.

    Every `write` ends with whole blocks handed to the kernel in one call, so that a process killed after it loses nothing and one
    killed in it loses that call's frames alone. Raises OSError (disk full) and leaves the file readable to its last whole block.
    """

    def __init__(self, path: Path, header: Header) -> None:
        """Creates `path`, which must not exist, with mode 0600."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        self.path = path
        self.num_bytes = 0
        self._fd = os.open(path, flags, FILE_MODE)
        self._digest = blocks.FIRST_DIGEST
        self._put(blocks.MAGIC + self._block(pack_header(header), num_frames=0))

    def write(self, frames: Iterable[tuple[int, int, list[Any]]]) -> None:
        """Packs, compresses and writes `(kind, t_ns, payload)` frames."""
        out: list[bytes] = []
        batch: list[bytes] = []
        size = 0
        for frame in frames:
            packed = pack_frame(*frame)
            if len(packed) > limits.MAX_TRACE_FRAME_BYTES:
                raise ValueError(f"a frame of {len(packed)} bytes; the limit is {limits.MAX_TRACE_FRAME_BYTES}")
            batch.append(packed)
            size += len(packed)
            if size >= blocks.BLOCK_BYTES:
                out.append(self._block(b"".join(batch), num_frames=len(batch)))
                batch, size = [], 0
        if batch:
            out.append(self._block(b"".join(batch), num_frames=len(batch)))
        self._put(b"".join(out))

    def close(self, reason: str, *, t_ns: int) -> None:
        """Writes the END frame and closes. Idempotent."""
        if self._fd < 0:
            return
        try:
            self.write([(Kind.END, t_ns, [reason])])
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes without an END frame: the file reads as cut off."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _block(self, raw: bytes, *, num_frames: int) -> bytes:
        block, self._digest = blocks.encode(raw, num_frames=num_frames, previous=self._digest)
        return block

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self.num_bytes += len(data)
