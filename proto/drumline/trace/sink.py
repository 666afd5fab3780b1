"""Segments written by a thread of their own, so that recording costs the step two list appends and never waits for a disk."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from drumline.trace.frames import Header
from drumline.trace.writer import SegmentWriter, make_directory

FLUSH_INTERVAL_S: Final = 0.5
"""A killed process loses at most this much."""
WAKE_BYTES: Final = 512 * 1024
MAX_PENDING_BYTES: Final = 128 * 1024 * 1024
"""Frames not yet written; beyond it the disk is too slow, and the recording stops rather than stall the step."""
_log = logging.getLogger(__name__)

RawFrame = tuple[int, int, list[Any]]
"""(kind, t_ns, payload)"""


class SegmentSink:
    """Owns the files of one recording. `put` and `rotate` are called by one thread, the core's; nothing here raises into it.

    Attributes:
        stopped: why nothing is written any more (disk full, disk too slow), or "". What was written stays readable.
    """

    def __init__(self, directory: Path, *, header: Callable[[int], Header], segment_bytes: int, max_bytes: int) -> None:
        """Makes the directory (0700). `header(n)` gives the header of segment n; a later session goes on behind files that
        exist."""
        make_directory(directory)
        self.stopped = ""
        self._directory = directory
        self._header = header
        self._segment_bytes = segment_bytes
        self._max_bytes = max_bytes
        self._closed_files: deque[tuple[Path, int]] = deque()
        self._first_number = 1 + max((int(path.stem) for path in directory.glob("*.trace") if path.stem.isdigit()), default=-1)
        self._pending: deque[tuple[RawFrame | Header, int]] = deque()
        self._put_bytes = self._taken_bytes = 0
        self._segment = 0
        self._last_t_ns = 0
        self._full = False
        self._closing = False
        self._writer: SegmentWriter | None = None
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    @property
    def rotation_due(self) -> bool:
        """The current segment has its size: the next frame should be a snapshot behind `rotate`."""
        return self._full and not self.stopped

    def put(self, frame: RawFrame, *, num_bytes: int) -> None:
        """Queues a frame of about `num_bytes`."""
        if self.stopped:
            return
        if not self._segment:
            self._open_segment()
        self._put_bytes += num_bytes
        self._pending.append((frame, num_bytes))
        waiting = self._put_bytes - self._taken_bytes
        if waiting > WAKE_BYTES:
            self._wake.set()
        if waiting > MAX_PENDING_BYTES:
            self.stop("the disk is too slow")

    def rotate(self) -> None:
        """Everything put from now on goes to the next segment."""
        self._full = False
        if not self.stopped and self._segment:
            self._open_segment()

    def close(self) -> None:
        """Writes what is queued and the end mark. Idempotent."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _open_segment(self) -> None:
        # the first segment begins with the first frame, when the header can already name an executor's model
        self._pending.append((self._header(self._segment), 0))
        self._segment += 1

    def _run(self) -> None:
        closing = False
        while not closing and not self.stopped:
            self._wake.wait(FLUSH_INTERVAL_S)
            self._wake.clear()
            closing = self._closing
            try:
                self._drain()
                if closing and self._writer is not None:
                    self._writer.close("closed", t_ns=self._last_t_ns)
            except (OSError, ValueError) as failure:
                self.stop(failure.strerror or "I/O error" if isinstance(failure, OSError) else str(failure))
        self._pending.clear()
        if self.stopped and self._writer is not None:
            self._writer.abandon()

    def _drain(self) -> None:
        batch: list[RawFrame] = []
        for _ in range(len(self._pending)):
            if self.stopped:
                return
            item, num_bytes = self._pending.popleft()
            self._taken_bytes += num_bytes
            if isinstance(item, Header):
                self._write(batch)
                batch = []
                self._next_file(item)
            else:
                batch.append(item)
        self._write(batch)
        if self._writer is not None and self._writer.num_bytes >= self._segment_bytes:
            self._full = True

    def _write(self, batch: list[RawFrame]) -> None:
        if batch and self._writer is not None:
            self._last_t_ns = batch[-1][1]
            self._writer.write(batch)

    def _next_file(self, header: Header) -> None:
        if self._writer is not None:
            self._writer.close("rotated", t_ns=self._last_t_ns)
            self._closed_files.append((self._writer.path, self._writer.num_bytes))
        # removing whole segments from the front keeps what is left replayable: each begins with a snapshot
        while sum(size for _, size in self._closed_files) + self._segment_bytes > self._max_bytes and self._closed_files:
            self._closed_files.popleft()[0].unlink(missing_ok=True)
        path = self._directory / f"{self._first_number + header.segment:04d}.trace"
        self._writer = SegmentWriter(path, header)

    def stop(self, reason: str) -> None:
        """Writes nothing more and says why; what was written stays readable. Idempotent, from any thread."""
        if not self.stopped:
            self.stopped = reason
            _log.error("recording stopped: %s; serving goes on", reason)
