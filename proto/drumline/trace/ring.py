"""The last steps, always in memory, dumped when something goes wrong."""

from collections.abc import Iterator
from typing import Final

from drumline.trace.sink import RawFrame

DEFAULT_FRAMES: Final = 4096
DEFAULT_BYTES: Final = 64 * 1024 * 1024


class Ring:
    """Two generations of frames, each begun by a snapshot; the older is dropped as a whole, so what is left always replays.

    Holds between half and all of `max_frames` an executor (or `max_bytes`, without snapshots) once that many have passed. A
    generation that could get no snapshot keeps the frames anyway: they can be read, but not replayed before the next snapshot.

    Attributes:
        num_executors: those whose frames come; at least 1. A snapshot is of all executors: if the frames behind it were not more
            where there are more of them, the cost of snapshots would grow with the square of the fleet.
    """

    def __init__(self, *, max_frames: int = DEFAULT_FRAMES, max_bytes: int = DEFAULT_BYTES) -> None:
        self.num_executors = 1
        self._most_executors = 1
        self._max_frames = max(max_frames // 2, 1)
        self._max_bytes = max_bytes // 2
        self._old: list[RawFrame] = []
        self._new: list[RawFrame] = []
        self._new_bytes = 0

    @property
    def generation_due(self) -> bool:
        """The newer generation has its size: `begin` one with a snapshot before the next input."""
        return len(self._new) >= self._max_frames * self.num_executors or self._new_bytes >= self._max_bytes

    def begin(self, snapshot: RawFrame | None) -> None:
        """Drops the older generation and starts one with `snapshot`, whose size its maker bounds: a large one that counted here
        would make the next one due at once."""
        self._old = self._new
        self._new = [] if snapshot is None else [snapshot]
        self._new_bytes = 0
        self._most_executors = self.num_executors

    def put(self, frame: RawFrame, *, num_bytes: int) -> None:
        """Keeps a frame of about `num_bytes`. Bounds hold although nobody calls `begin`: a flood of inputs between steps is cut.
        Not so the steps of executors that were lost, which `begin` with a snapshot ends at the next tick."""
        self._most_executors = max(self._most_executors, self.num_executors)
        if len(self._new) >= 4 * self._max_frames * self._most_executors or self._new_bytes >= 2 * self._max_bytes:
            self.begin(None)
        self._new.append(frame)
        self._new_bytes += num_bytes

    def frames(self) -> Iterator[RawFrame]:
        """Oldest first."""
        yield from self._old
        yield from self._new
