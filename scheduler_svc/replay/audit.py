"""Audits a recording alone: no core, no executor, no model. Every broken promise of the seam is named with its step and row.

The scheduler's bounds come from the header (`Limits`), the executor's from its handshake; everything else is kept in `Books`.
"""

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from drumline.plan.v1.plan_pb2 import StepPlan, StepResult
from drumline.trace.frames import Frame, Header, Kind, UnreadableRecording
from scheduler_svc.replay.audit_plan import PlanAudit
from scheduler_svc.replay.audit_result import ResultAudit
from scheduler_svc.replay.books import Books, Step
from scheduler_svc.replay.findings import Finding, Name
from scheduler_svc.replay.start import seed_books

MAX_FINDINGS: Final = 1000
NOT_UNDERSTOOD: Final = (DecodeError, KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What reading a frame raises whose bytes are no message, or whose snapshot is no snapshot."""


def not_understood(frame: Frame, number: int, failure: Exception) -> UnreadableRecording:
    """A frame with the right checksum and the wrong content."""
    return UnreadableRecording(f"frame {number} ({frame.kind.name}) cannot be understood: {type(failure).__name__}")


class Auditor:
    """Feed it frames in order; `findings` grows. `books` and the steps it returns serve the other tools.

    Attributes:
        state: the core's state, if the first frame was a snapshot.
        now_ns: time of the last TICK.
    """

    def __init__(self, header: Header) -> None:
        self.books = Books()
        self.findings: list[Finding] = []
        self._plans = PlanAudit(self.books, self.findings, settings=header.settings)
        self._results = ResultAudit(self.books, self.findings)
        self._num_frames = 0
        self._headless = header.segment != 0
        self.now_ns = 0
        self.state: dict[str, Any] = {}

    def frame(self, frame: Frame) -> Step | None:
        """Takes one frame; the step that it began (PLAN) or answered (RESULT), if any. Raises UnreadableRecording."""
        try:
            step = self._take(frame)
        except NOT_UNDERSTOOD as failure:
            raise not_understood(frame, self._num_frames, failure) from None
        self._num_frames += 1
        del self.findings[MAX_FINDINGS:]
        return step

    def _take(self, frame: Frame) -> Step | None:
        payload = frame.payload
        if frame.kind in (Kind.PLAN, Kind.RESULT) and self._headless and payload[0] not in self.books.desks:
            raise UnreadableRecording("the recording begins neither with its session nor with a snapshot")
        match frame.kind:
            case Kind.PLAN:
                return self._plans.plan(payload[0], StepPlan.FromString(payload[1]), t_ns=frame.t_ns)
            case Kind.RESULT:
                step = self._results.result(payload[0], StepResult.FromString(payload[1]), t_ns=frame.t_ns)
                if step is not None:
                    self._plans.answered(step)
                return step
            case Kind.SNAPSHOT:
                if self._num_frames == 0:
                    self._headless = False
                    self.state = seed_books(self.books, payload)
            case _:
                self._input(frame.kind, payload)
        return None

    def _input(self, kind: Kind, payload: list[Any]) -> None:
        match kind:
            case Kind.HANDSHAKE:
                self.books.handshake(*payload)
            case Kind.ARRIVAL:
                self.books.arrival(*payload)
            case Kind.ABORT:
                self._plans.abort(payload[0])
            case Kind.TICK:
                self.now_ns = payload[1]
                self._plans.tick(payload[0], now_ns=payload[1])
            case Kind.DRAIN if (desk := self.books.desks.get(payload[0])) is not None:
                desk.draining = True
            case Kind.LOST:
                self._plans.lost(payload[0])


def audit(header: Header, frames: Iterable[Frame]) -> list[Finding]:
    """All findings of a recording, in frame order."""
    auditor = Auditor(header)
    for frame in frames:
        auditor.frame(frame)
    return auditor.findings


__all__ = ["NOT_UNDERSTOOD", "Auditor", "Finding", "Name", "audit", "not_understood"]
