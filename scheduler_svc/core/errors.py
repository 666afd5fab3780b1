"""What the core raises. Requests that cannot be served are values (`Refusal`, `Outputs.errors`), never exceptions."""


class CoreError(Exception):
    """Base of the core's exceptions."""


class ResultMismatch(CoreError):
    """A result contradicts the books. Nothing of it was applied; the shell must treat the executor as lost.

    Attributes:
        executor_id: who sent it.
        step_id: the result's own.
        what: for people: which field, expected and got.
    """

    def __init__(self, what: str, *, executor_id: int, step_id: int) -> None:
        super().__init__(f"executor {executor_id}, step {step_id}: {what}")
        self.executor_id = executor_id
        self.step_id = step_id
        self.what = what


class ContradictingCadence(CoreError):
    """Admission, layout and cadence, as set, cannot all be kept. The message names them."""


class InvariantViolation(CoreError):
    """The core's own books contradict each other: a defect of ours. The message names the invariant."""
