"""Records what the core consumed and planned: to files if asked to, and to a ring in memory always.

Called by the engine, on the core's thread, before each input is applied and after each plan is made. Costs two list appends a
frame; packing, compressing and writing are a thread's. Nothing raises into the engine: a recording that cannot go on stops and
says so.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from drumline.limits import MAX_TRACE_FRAME_BYTES
from drumline.trace.frames import Deferred, Header, Kind, pack_state
from drumline.trace.ring import DEFAULT_BYTES, DEFAULT_FRAMES, Ring
from drumline.trace.sink import RawFrame, SegmentSink
from drumline.trace.writer import SegmentWriter, make_directory
from scheduler_svc import garbage

SEGMENT_BYTES: Final = 64 * 1024 * 1024
"""Compressed size at which a segment ends."""
MAX_BYTES: Final = 4 * 1024**3
"""Size of a recording above which its oldest segments are removed."""
MAX_DUMPS: Final = 16
"""Rings dumped per session: a fault that repeats does not fill the disk."""
_FRAME_OVERHEAD_BYTES: Final = 48
_log = logging.getLogger(__name__)


def default_fault_directory() -> Path:
    """Where rings are dumped when nothing is recorded."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "drumline" / "faults"


@dataclass(slots=True)
class _Executor:
    """What a snapshot says of an executor beside the core's state."""

    address: str
    capabilities: bytes
    model_digest: str
    in_flight: deque[bytes] = field(default_factory=deque)


class State(Protocol):
    """The core's state at one moment, which goes on existing: `data` gives it as plain data on any thread, as often as asked."""

    @property
    def num_bytes(self) -> int:
        """About how many bytes it has when packed."""
        ...

    def data(self) -> object:
        """For `pack_state`."""
        ...


class FileRecorder:
    """The Recorder port. One per session; `close` it.

    `freeze` is asked for the core's state when a segment or a ring generation begins, always at the start of a TICK, when the
    state is what all frames before it made. It is packed by the writer's thread, or when the ring is dumped. With `directory` None
    nothing but the ring is kept.
    """

    def __init__(
        self,
        *,
        session_epoch: int,
        freeze: Callable[[], State],
        settings: Mapping[str, Any] | None = None,
        directory: Path | None = None,
        fault_directory: Path | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        max_bytes: int = MAX_BYTES,
        ring_frames: int = DEFAULT_FRAMES,
        ring_bytes: int = DEFAULT_BYTES,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`settings` is plain data (the core's `Limits` by field name under "limits"); `fault_directory` defaults beside
        `directory`."""
        self._session_epoch = session_epoch
        self._freeze = freeze
        self._settings = dict(settings or {})
        self._clock = clock
        self._executors: dict[int, _Executor] = {}
        self._fault_directory = fault_directory or (directory / "faults" if directory else default_fault_directory())
        self._num_dumps = 0
        self._can_snapshot = True
        self._ring = Ring(max_frames=ring_frames, max_bytes=ring_bytes)
        self._sink = (
            SegmentSink(directory, header=self._header, segment_bytes=segment_bytes, max_bytes=max_bytes) if directory else None
        )

    @property
    def stopped(self) -> str:
        """Why files are no longer written, or ""."""
        return self._sink.stopped if self._sink else ""

    def handshake(self, executor_id: int, address: str, wire: bytes) -> None:
        """An executor joined; `wire` is its GetCapabilitiesResponse."""
        digest = GetCapabilitiesResponse.FromString(wire).model_digest
        self._executors[executor_id] = _Executor(address, wire, digest)
        self._ring.num_executors = len(self._executors)
        self._put(Kind.HANDSHAKE, self._clock(), [executor_id, address, wire], len(wire) + len(address))

    def arrival(self, first_key: int, arrival_ns: int, default_timeout_ms: int, wire: bytes) -> None:
        """Sequences arrived; `wire` is a Submit whose seeds are filled in."""
        self._put(Kind.ARRIVAL, self._clock(), [first_key, arrival_ns, default_timeout_ms, wire], len(wire))

    def abort(self, keys: Sequence[int]) -> None:
        """Sequences were withdrawn."""
        self._put(Kind.ABORT, self._clock(), [list(keys)], 9 * len(keys))

    def tick(self, executor_id: int, now_ns: int) -> None:
        """`tick(now_ns)` and `schedule(executor_id)` follow."""
        if self._ring.generation_due or (self._sink is not None and self._sink.rotation_due):
            self._take_snapshot(now_ns)
        self._put(Kind.TICK, now_ns, [executor_id, now_ns], 0)

    def result(self, executor_id: int, wire: bytes) -> None:
        """A StepResult came."""
        executor = self._executors.get(executor_id)
        if executor is not None and executor.in_flight:
            executor.in_flight.popleft()
        self._put(Kind.RESULT, self._clock(), [executor_id, wire], len(wire))

    def drain(self, executor_id: int) -> None:
        """An executor takes nothing new."""
        self._put(Kind.DRAIN, self._clock(), [executor_id], 0)

    def lost(self, executor_id: int, reason: str) -> None:
        """An executor is gone."""
        self._executors.pop(executor_id, None)
        self._ring.num_executors = max(1, len(self._executors))
        self._put(Kind.LOST, self._clock(), [executor_id, reason], len(reason))

    def plan(self, executor_id: int, wire: bytes) -> None:
        """The core made a StepPlan."""
        if (executor := self._executors.get(executor_id)) is not None:
            executor.in_flight.append(wire)
        self._put(Kind.PLAN, self._clock(), [executor_id, wire], len(wire))

    def dump(self, reason: str) -> Path | None:
        """Writes the ring to the fault directory; its path, or None where that was impossible or has happened `MAX_DUMPS` times."""
        if self._num_dumps >= MAX_DUMPS:
            return None
        self._num_dumps += 1
        path = self._fault_directory / f"fault-{self._session_epoch}-{self._num_dumps:02d}.trace"
        frames = list(self._ring.frames())
        for kept in (frames, [frame for frame in frames if frame[0] is not Kind.SNAPSHOT]):
            try:
                make_directory(self._fault_directory)
                self._write_segment(path, kept, reason=reason)
            except OSError as failure:
                _log.error("the ring could not be dumped: %s", type(failure).__name__)
                return None
            except ValueError as failure:  # a snapshot that cannot be packed must not take the evidence with it
                _log.error("the ring is dumped without its snapshots: %s", failure)
                continue
            _log.warning("%s: the last steps are in %s", reason, path)
            return path
        return None

    def _write_segment(self, path: Path, frames: list[RawFrame], *, reason: str) -> None:
        """Writes a whole file; none is left behind by an error."""
        writer = SegmentWriter(path, self._header(-1))
        try:
            writer.write(frames)
            writer.close(reason[:500], t_ns=self._clock())
        except ValueError:
            path.unlink(missing_ok=True)
            raise
        finally:
            writer.abandon()

    def close(self) -> None:
        """Writes what is queued. Idempotent."""
        if self._sink is not None:
            self._sink.close()

    def _put(self, kind: Kind, t_ns: int, payload: list[Any], size: int) -> None:
        frame: RawFrame = (kind, t_ns, payload)
        size += _FRAME_OVERHEAD_BYTES
        self._ring.put(frame, num_bytes=size)
        if self._sink is not None:
            self._sink.put(frame, num_bytes=size)

    def _take_snapshot(self, now_ns: int) -> None:
        rotate = self._sink is not None and self._sink.rotation_due
        frame, size = self._snapshot_frame(now_ns) if self._can_snapshot else (None, 0)
        self._ring.begin(frame)
        if rotate and frame is not None and self._sink is not None:
            self._sink.rotate()
            self._sink.put(frame, num_bytes=size)

    def _snapshot_frame(self, now_ns: int) -> tuple[RawFrame | None, int]:
        """The frame and about its bytes; no frame when it cannot be made, which must not end serving. No segment can begin then, so
        files end here by name instead of growing for ever; the ring goes on without. Not tried again: each step would pay."""
        try:
            with garbage.quiet():
                state = self._freeze()
            executors = [[key, one.address, one.capabilities, list(one.in_flight)] for key, one in self._executors.items()]
            if state.num_bytes > MAX_TRACE_FRAME_BYTES // 2:
                raise ValueError(f"the snapshot has about {state.num_bytes} bytes; the limit is {MAX_TRACE_FRAME_BYTES // 2}")
        except Exception:
            _log.exception("no snapshot")
            self._can_snapshot = False
            if self._sink is not None:
                self._sink.stop("no snapshot could be made")
            return None, 0
        packed = Deferred(lambda: pack_state(state.data()))
        return (Kind.SNAPSHOT, now_ns, [packed, executors]), state.num_bytes

    def _header(self, segment: int) -> Header:
        return Header(
            session_epoch=self._session_epoch,
            segment=segment,
            wall_ns=time.time_ns(),
            mono_ns=self._clock(),
            model_digest=next((one.model_digest for one in self._executors.values()), ""),
            settings=self._settings,
            capabilities=[one.capabilities for one in self._executors.values()],
        )
