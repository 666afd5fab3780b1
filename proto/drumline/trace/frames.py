"""What a recording holds: frames, the header of a segment, and the scheduler's state in a snapshot.

A frame is `(kind, t_ns, payload)`. `t_ns` is the recorder's monotonic clock. `payload` is a list whose shape `SHAPES` gives; a
frame of any other shape is refused. Wire messages are `bytes`, exactly as they crossed.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from typing import Any, Final

import msgpack

from drumline.errors import InvalidRequest
from drumline.version import PROTOCOL_VERSION, SOFTWARE_VERSION, TRACE_VERSION

SAMPLING_EXT: Final = 1
"""msgpack extension code of a serialised SamplingParams inside a snapshot; no other code is accepted."""


class UnreadableRecording(InvalidRequest):
    """A file that is no recording, or a recording that was changed. Names the file and the block, never a directory."""


class Kind(IntEnum):
    """What happened. The core's inputs in the order it consumed them, its plans, and marks of the recorder."""

    HANDSHAKE = 1
    ARRIVAL = 2
    ABORT = 3
    TICK = 4
    RESULT = 5
    DRAIN = 6
    LOST = 7
    PLAN = 8
    SNAPSHOT = 9
    END = 10


SHAPES: Final[dict[Kind, tuple[type, ...]]] = {
    Kind.HANDSHAKE: (int, str, bytes),  # executor_id, address, GetCapabilitiesResponse
    Kind.ARRIVAL: (int, int, int, bytes),  # first_key, arrival_ns, default_timeout_ms, Submit
    Kind.ABORT: (list,),  # keys
    Kind.TICK: (int, int),  # executor_id, now_ns: tick(now_ns), then schedule(executor_id); a PLAN follows iff one came out
    Kind.RESULT: (int, bytes),  # executor_id, StepResult
    Kind.DRAIN: (int,),  # executor_id
    Kind.LOST: (int, str),  # executor_id, reason
    Kind.PLAN: (int, bytes),  # executor_id, StepPlan
    Kind.SNAPSHOT: (
        bytes,
        list,
    ),  # pack_state(core.snapshot()), [executor_id, address, capabilities, [plans in flight]] per executor
    Kind.END: (str,),  # why the segment ends: "rotated", "closed", or the fault that a ring was dumped for
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; `payload` as `SHAPES[kind]` says."""

    kind: Kind
    t_ns: int
    payload: list[Any]


@dataclass(frozen=True, slots=True)
class Header:
    """First thing in a segment.

    Attributes:
        session_epoch: the scheduler's; segments of one session share it.
        segment: number of this segment in its session, from 0; a dumped ring has -1.
        wall_ns: wall clock when the segment began; `mono_ns`: the frames' clock at that moment.
        model_digest: model of the first executor; empty if none had joined.
        settings: the scheduler's `Limits` and settings, by field name.
        capabilities: GetCapabilitiesResponse bytes of every executor present when the segment began.
    """

    session_epoch: int
    segment: int
    wall_ns: int
    mono_ns: int
    model_digest: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    capabilities: list[bytes] = field(default_factory=list)
    trace_version: int = TRACE_VERSION
    software_version: str = SOFTWARE_VERSION
    protocol_version: int = PROTOCOL_VERSION


def pack_header(header: Header) -> bytes:
    """The header's msgpack map."""
    return bytes(msgpack.packb(asdict(header)))


def unpack_header(raw: bytes, *, name: str) -> Header:
    """A header; unknown keys are dropped so that an older reader can name the version it refuses."""
    value = _unpack(raw, name=f"{name}: header")
    if not isinstance(value, dict) or not isinstance(value.get("trace_version"), int):
        raise UnreadableRecording(f"{name}: the header is no map with a trace_version")
    if not 1 <= value["trace_version"] <= TRACE_VERSION:
        raise UnreadableRecording(f"{name}: trace version {value['trace_version']}; this release reads 1 to {TRACE_VERSION}")
    kinds = {"settings": dict, "capabilities": list, "model_digest": str, "software_version": str}
    known: dict[str, Any] = {}
    for item in fields(Header):
        found = value.get(item.name)
        if not isinstance(found, kinds.get(item.name, int)):
            raise UnreadableRecording(f"{name}: header field {item.name} is missing or has another type")
        known[item.name] = found
    return Header(**known)


class Deferred:
    """Bytes of a payload that are made when the frame is written, by whoever writes it: on a recorder's own thread, or never.

    `make` reads nothing that changes. What it raises becomes a ValueError: the frame cannot be written.
    """

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make = make

    def __call__(self) -> bytes:
        """The bytes, made anew."""
        try:
            return self._make()
        except Exception as failure:
            raise ValueError(f"no snapshot could be made: {type(failure).__name__}: {failure}") from failure


def pack_frame(kind: int, t_ns: int, payload: list[Any]) -> bytes:
    """A frame as msgpack. Raises ValueError when deferred bytes cannot be made."""
    ready = [item() if isinstance(item, Deferred) else item for item in payload]
    return bytes(msgpack.packb((int(kind), t_ns, ready)))


def unpack_frames(raw: bytes, *, count: int, name: str) -> list[Frame]:
    """Exactly `count` frames that fill `raw` exactly; anything else is refused."""
    unpacker = msgpack.Unpacker(strict_map_key=True, max_buffer_size=max(len(raw), 1), ext_hook=_refuse_ext)
    unpacker.feed(raw)
    frames: list[Frame] = []
    try:
        for value in unpacker:
            if len(frames) == count:
                raise UnreadableRecording(f"{name}: more frames than the {count} declared")
            frames.append(_frame(value, name=f"{name} frame {len(frames)}"))
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as failure:
        raise UnreadableRecording(f"{name}: not msgpack ({type(failure).__name__})") from None
    if len(frames) != count or unpacker.tell() != len(raw):
        raise UnreadableRecording(f"{name}: {len(frames)} frames where {count} were declared")
    return frames


def _frame(value: object, *, name: str) -> Frame:
    match value:
        case [int(kind), int(t_ns), list(payload)] if kind in Kind._value2member_map_:
            shape = SHAPES[Kind(kind)]
            if len(payload) == len(shape) and all(isinstance(item, want) for item, want in zip(payload, shape, strict=True)):
                return Frame(Kind(kind), t_ns, payload)
    raise UnreadableRecording(f"{name}: no frame of a known kind and shape")


def pack_state(state: object) -> bytes:
    """`core.snapshot()` as bytes; protobuf messages in it (sampling) become extension `SAMPLING_EXT`."""
    return bytes(msgpack.packb(state, default=_to_ext))


def unpack_state(raw: bytes, *, sampling: Callable[[bytes], object] = bytes, name: str = "snapshot") -> Any:
    """What `pack_state` packed; `sampling` parses the messages in it."""

    def parse(code: int, data: bytes) -> object:
        if code != SAMPLING_EXT:
            raise ValueError(f"extension {code} in a snapshot")
        return sampling(data)

    return _unpack(raw, name=name, ext_hook=parse)


def _unpack(raw: bytes, *, name: str, ext_hook: Callable[[int, bytes], object] | None = None) -> Any:
    try:
        return msgpack.unpackb(raw, strict_map_key=False, ext_hook=ext_hook or _refuse_ext)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError, TypeError) as failure:
        raise UnreadableRecording(f"{name}: not msgpack ({type(failure).__name__})") from None


def _to_ext(value: Any) -> Any:
    if hasattr(value, "SerializeToString"):
        return msgpack.ExtType(SAMPLING_EXT, value.SerializeToString(deterministic=True))
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError(f"a snapshot holds a {type(value).__name__}, which a recording cannot")


def _refuse_ext(code: int, data: bytes) -> Any:
    raise ValueError(f"extension {code} of {len(data)} bytes in a frame")
