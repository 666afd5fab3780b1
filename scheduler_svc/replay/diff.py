"""Compares two recordings: settings, the first input or plan that differs, and what each request got."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from drumline.plan.v1.plan_pb2 import StepPlan, StepResult
from drumline.scheduler.v1.scheduler_pb2 import Submit
from drumline.trace.frames import Frame, Kind
from drumline.trace.reader import Recording
from scheduler_svc.replay.against import first_field
from scheduler_svc.replay.audit import Auditor

_MESSAGES: dict[Kind, Any] = {
    Kind.HANDSHAKE: GetCapabilitiesResponse,
    Kind.ARRIVAL: Submit,
    Kind.PLAN: StepPlan,
    Kind.RESULT: StepResult,
}
_OF_THE_MOMENT = {"session_epoch", "instance_id", "timing"}
"""Fields that differ between any two sessions."""


@dataclass(slots=True)
class RecordingDiff:
    """What is different between recordings A and B; all empty = the same session for whoever used it.

    Attributes:
        settings: name -> (A, B).
        first: per kind, (frame number among its kind, field, A, B) of the first frame of that kind that differs.
        outputs: (request id, output position, A's token, B's token) of each request's first differing token; None = absent.
    """

    settings: dict[str, tuple[object, object]] = field(default_factory=dict)
    first: dict[str, tuple[int, str, object, object]] = field(default_factory=dict)
    outputs: list[tuple[str, int, int | None, int | None]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Nothing differs."""
        return not (self.settings or self.first or self.outputs)


def diff(a: Recording, b: Recording) -> RecordingDiff:
    """Compares two recordings; times, epochs and process ids do not count."""
    found = RecordingDiff()
    limits_a, limits_b = ({"model_digest": one.header.model_digest, **one.header.settings.get("limits", {})} for one in (a, b))
    for name in sorted({*limits_a, *limits_b}):
        if limits_a.get(name) != limits_b.get(name):
            found.settings[name] = limits_a.get(name), limits_b.get(name)
    for kind in _MESSAGES:
        pairs = zip_longest(_of_kind(a, kind), _of_kind(b, kind))
        for number, (one, other) in enumerate(pairs, start=1):
            if (named := _first(one, other)) is not None:
                found.first[kind.name] = (number, *named)
                break
    found.outputs.extend(_outputs(a, b))
    return found


def _of_kind(recording: Recording, kind: Kind) -> Iterator[Frame]:
    return (frame for frame in recording if frame.kind is kind)


def _first(one: Frame | None, other: Frame | None) -> tuple[str, object, object] | None:
    if one is None or other is None:
        return "count", "absent" if one is None else "present", "absent" if other is None else "present"
    messages = []
    for frame in (one, other):
        message = _MESSAGES[frame.kind].FromString(frame.payload[-1])
        for name in _OF_THE_MOMENT & set(message.DESCRIPTOR.fields_by_name):
            message.ClearField(name)
        messages.append(message)
    if messages[0] == messages[1]:
        return None
    name, index, want, got = first_field(*messages)
    return (name if index is None else f"{name}[{index}]"), want, got


def _outputs(a: Recording, b: Recording) -> Iterator[tuple[str, int, int | None, int | None]]:
    said = []
    for recording in (a, b):
        auditor = Auditor(recording.header)
        for frame in recording:
            auditor.frame(frame)
        said.append(
            {key: (life.request_id, life.tokens[life.num_prompt :]) for key, life in auditor.books.lives.items() if key > 0}
        )
    for key in sorted({*said[0], *said[1]}):
        (name, tokens), (other_name, others) = (one.get(key, ("", [])) for one in said)
        for position, (token, other) in enumerate(zip_longest(tokens, others)):
            if token != other:
                yield name or other_name or str(key), position, token, other
                break
