"""Starts a replay in the middle of a session: synthetic plans rebuild what the executor held at the snapshot."""

from collections.abc import Iterator

from drumline.plan.v1.plan_pb2 import StepPlan, StepResult
from scheduler_svc.replay.books import Books, Step


class Warmup:
    """Nothing to do for a recording that begins with its session."""

    def __init__(self, executor_id: int) -> None:
        self.executor_id = executor_id
        self.note = ""
        self._offset = 0

    def begin(self, books: Books) -> None:
        """The books as the snapshot seeded them."""

    def plans(self, first: Step, *, session_epoch: int) -> Iterator[StepPlan]:
        """Plans to run before `first`."""
        yield from ()

    def check(self, result: StepResult) -> None:
        """Result of one of `plans`."""

    def renumbered(self, step: Step, *, session_epoch: int) -> StepPlan:
        """A recorded plan as it must be sent."""
        if step.plan.session_epoch != session_epoch:
            step.plan.session_epoch = session_epoch
        return step.plan
