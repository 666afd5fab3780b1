"""The error tree and the one table that maps an error to gRPC and HTTP.

    DrumlineError
    ├── InvalidRequest            the caller must change the request
    │   └── ContextLengthExceeded
    ├── Unauthenticated
    ├── NotFound
    ├── Overloaded                try again later
    ├── Unavailable               no executor, or going away
    │   └── Draining
    ├── DeadlineExceeded
    ├── Cancelled                 the client left
    ├── SeamError                 two services disagree; named, never retried blindly
    │   ├── ProtocolMismatch
    │   ├── ModelMismatch
    │   ├── StaleEpoch
    │   ├── StaleGrant
    │   └── PlanRejected
    └── Internal

Messages are for people: they name the field and the limit, and carry no path, address, traceback or prompt text.
"""

from dataclasses import dataclass
from typing import ClassVar, Final


class DrumlineError(Exception):
    """Base of every error that crosses a seam.

    Attributes:
        code: stable word, the key of `TABLE`; goes over the wire.
        message: for people.
        param: name of the offending request field, or None.
        retry_after_s: when to try again, or None.
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(DrumlineError):
    """A field of the request is wrong; `param` names it."""

    code = "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus max_tokens does not fit the model or the KV cache."""

    code = "context_length_exceeded"


class Unauthenticated(DrumlineError):
    """No API key, or a wrong one."""

    code = "invalid_api_key"


class NotFound(DrumlineError):
    """Unknown model or route."""

    code = "not_found"


class Overloaded(DrumlineError):
    """The waiting queue is full, in requests or in tokens."""

    code = "overloaded"


class Unavailable(DrumlineError):
    """No executor has joined, or the service behind is away."""

    code = "unavailable"


class Draining(Unavailable):
    """The service is shutting down and takes nothing new."""

    code = "draining"


class DeadlineExceeded(DrumlineError):
    """The sequence's time to live passed."""

    code = "deadline_exceeded"


class Cancelled(DrumlineError):
    """The client left."""

    code = "cancelled"


class SeamError(DrumlineError):
    """Two services disagree about what they are."""

    code = "seam_error"


class ProtocolMismatch(SeamError):
    """The peer's wire protocol is outside our range."""

    code = "protocol_mismatch"


class ModelMismatch(SeamError):
    """The peer serves another model."""

    code = "model_mismatch"


class StaleEpoch(SeamError):
    """A session epoch that is not newer than the owner's."""

    code = "stale_epoch"


class StaleGrant(SeamError):
    """A plan that carries another grant than the session's."""

    code = "stale_grant"


class PlanRejected(SeamError):
    """A plan that cannot be applied as a whole."""

    code = "plan_rejected"


class Internal(DrumlineError):
    """A defect of ours."""

    code = "internal"


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One line of the table.

    Attributes:
        error: the class.
        grpc_status: name of a `grpc.StatusCode`.
        http_status: status of the HTTP answer.
        openai_type: the `type` field of OpenAI's error object.
    """

    error: type[DrumlineError]
    grpc_status: str
    http_status: int
    openai_type: str


TABLE: Final[tuple[ErrorRow, ...]] = (
    ErrorRow(InvalidRequest, "INVALID_ARGUMENT", 400, "invalid_request_error"),
    ErrorRow(ContextLengthExceeded, "INVALID_ARGUMENT", 400, "invalid_request_error"),
    ErrorRow(Unauthenticated, "UNAUTHENTICATED", 401, "authentication_error"),
    ErrorRow(NotFound, "NOT_FOUND", 404, "not_found_error"),
    ErrorRow(Overloaded, "RESOURCE_EXHAUSTED", 429, "rate_limit_error"),
    ErrorRow(Unavailable, "UNAVAILABLE", 503, "service_unavailable_error"),
    ErrorRow(Draining, "UNAVAILABLE", 503, "service_unavailable_error"),
    ErrorRow(DeadlineExceeded, "DEADLINE_EXCEEDED", 504, "timeout_error"),
    ErrorRow(Cancelled, "CANCELLED", 499, "cancelled_error"),
    ErrorRow(SeamError, "FAILED_PRECONDITION", 503, "service_unavailable_error"),
    ErrorRow(ProtocolMismatch, "FAILED_PRECONDITION", 503, "service_unavailable_error"),
    ErrorRow(ModelMismatch, "FAILED_PRECONDITION", 503, "service_unavailable_error"),
    ErrorRow(StaleEpoch, "FAILED_PRECONDITION", 503, "service_unavailable_error"),
    ErrorRow(StaleGrant, "FAILED_PRECONDITION", 503, "service_unavailable_error"),
    ErrorRow(PlanRejected, "FAILED_PRECONDITION", 503, "service_unavailable_error"),
    ErrorRow(Internal, "INTERNAL", 500, "server_error"),
)
BY_CODE: Final[dict[str, ErrorRow]] = {row.error.code: row for row in TABLE}


def from_code(code: str, message: str, *, retry_after_s: int | None = None) -> DrumlineError:
    """The error that a peer named by `code`; an unknown code becomes Internal, keeping the message."""
    row = BY_CODE.get(code)
    kind = row.error if row else Internal
    return kind(message, retry_after_s=retry_after_s)
