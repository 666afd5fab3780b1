"""A recording as a timeline that Perfetto (and chrome://tracing) reads: a track per executor, a track per request.

Times are the recorder's monotonic clock. A step's place on the device is told from its result's arrival and its own account, so it
is late by the wire's delay. Format: the "Trace Event Format", JSON, times in microseconds.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, TextIO

from drumline.trace.frames import Kind
from drumline.trace.reader import Recording
from scheduler_svc.replay.audit import Auditor
from scheduler_svc.replay.books import DECODE, Step

REQUESTS_PID: Final = 1_000_000
Event = dict[str, Any]


def export(recording: Recording, out: TextIO) -> int:
    """Writes the timeline; returns the number of events."""
    count = 0
    out.write('{"displayTimeUnit":"ms","traceEvents":[')
    for event in events(recording):
        out.write(",\n" if count else "\n")
        json.dump(event, out, separators=(",", ":"))
        count += 1
    out.write("\n]}\n")
    return count


def events(recording: Recording) -> Iterator[Event]:
    """All events, about in order of time."""
    auditor = Auditor(recording.header)
    origin: int | None = None
    num_seen = 0
    yield _name("process_name", REQUESTS_PID, 0, "requests")
    for frame in recording:
        origin = frame.t_ns if origin is None else origin
        step = auditor.frame(frame)
        if frame.kind is Kind.HANDSHAKE:
            yield from _executor(frame.payload[0], frame.payload[1])
        for key in list(islice(auditor.books.lives, num_seen, None)):
            yield _name("thread_name", REQUESTS_PID, _track(key), auditor.books.lives[key].request_id or f"key {key}")
        num_seen = len(auditor.books.lives)
        if frame.kind is Kind.RESULT and step is not None and step.t_ns:
            yield from _step(step, origin=origin)
        elif frame.kind in (Kind.ABORT, Kind.LOST, Kind.DRAIN):
            where = frame.payload[0] if frame.kind is not Kind.ABORT else REQUESTS_PID
            yield {"ph": "i", "s": "g", "name": frame.kind.name.lower(), "pid": where, "tid": 0, "ts": (frame.t_ns - origin) / 1000}


def _executor(executor_id: int, address: str) -> Iterator[Event]:
    yield _name("process_name", executor_id, 0, f"executor {executor_id} ({address})")
    for track, name in enumerate(("in flight", "device")):
        yield _name("thread_name", executor_id, track, name)


def _step(step: Step, *, origin: int) -> Iterator[Event]:
    """The plan's flight, its parts on the device, and a slice per row on its request's track."""
    result = step.result
    if result is None:
        return
    pid, timing, step_id = step.executor_id, result.timing, int(step.plan.step_id)
    sent, back = (step.t_ns - origin) / 1000, (step.result_t_ns - origin) / 1000
    num_tokens = sum(row.num_tokens for row in step.rows)
    args = {"rows": len(step.rows), "tokens": num_tokens, "emitted": len(result.token_ids), "queue_us": timing.queue_ns / 1000}
    for phase, at in (("b", sent), ("e", back)):
        yield {
            "ph": phase,
            "cat": "plan",
            "id": f"{pid}.{step_id}",
            "name": f"plan {step_id}",
            "pid": pid,
            "tid": 0,
            "ts": at,
            "args": args,
        }
    parts = [(name, getattr(timing, f"{name}_ns") / 1000) for name in ("assemble", "draft", "forward", "sample")]
    at = begin = back - sum(length for _, length in parts)
    yield _slice(f"step {step_id}", pid, 1, begin, back - begin, args)
    for name, length in parts:
        if length:
            yield _slice(name, pid, 1, at, length, {})
        at += length
    for index, row in enumerate(step.rows):
        what = "decode" if row.kind == DECODE else f"prefill {row.start}..{row.start + row.num_tokens}"
        told = {"executor": pid, "step": step_id, "row": index, "slot": row.resident.slot}
        yield _slice(what, REQUESTS_PID, _track(row.resident.life.key), begin, back - begin, told)


def _track(key: int) -> int:
    return key if key >= 0 else REQUESTS_PID - key


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(name: str, pid: int, tid: int, begin: float, length: float, args: dict[str, Any]) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": round(begin, 3),
        "dur": round(max(length, 0.001), 3),
        "args": args,
    }
