"""Errors as clients see them: OpenAI's error object, by the one table of `drumline.errors`. No paths, addresses or tracebacks."""

import json
import logging
from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from drumline.errors import BY_CODE, DrumlineError, Internal, InvalidRequest, NotFound, Unauthenticated

_log = logging.getLogger(__name__)
_MAX_LISTED: Final = 3
_RETRY_AFTER_S: Final = 1


def error_object(error: DrumlineError) -> dict[str, Any]:
    """`{"error": {...}}` as OpenAI writes it."""
    kind = BY_CODE[error.code].openai_type
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def error_response(error: DrumlineError, *, status: int | None = None) -> Response:
    """The HTTP answer; overload and unavailability say when to try again."""
    status = status or BY_CODE[error.code].http_status
    headers = {}
    if status in (429, 503):
        headers["retry-after"] = str(error.retry_after_s or _RETRY_AFTER_S)
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    return Response(json.dumps(error_object(error)), status_code=status, headers=headers, media_type="application/json")


def of_validation(problems: Sequence[Any]) -> InvalidRequest:
    """One error for what pydantic found; it names fields and limits and never repeats values."""
    found = [_problem(problem) for problem in problems[:_MAX_LISTED]]
    more = f" (and {len(problems) - _MAX_LISTED} more)" if len(problems) > _MAX_LISTED else ""
    return InvalidRequest("; ".join(text for _, text in found) + more, param=found[0][0] if found else None)


def _problem(problem: Any) -> tuple[str | None, str]:
    location = [part for part in problem["loc"] if part != "body"]
    if problem["type"] == "json_invalid":
        return None, "the body is not valid JSON"
    name = ".".join(_shown(part) for part in location)
    if problem["type"] == "extra_forbidden":
        return name, f"unknown field {name}"
    if problem["type"] == "missing":
        return name or None, f"{name or 'the body'} is required"
    if not name:
        return None, "the body must be a JSON object, sent as application/json"
    return name, f"{name}: {problem['msg'].removeprefix('Value error, ')}"


def _shown(part: object) -> str:
    return ascii(part[:64])[1:-1] if isinstance(part, str) else str(part)


async def _on_drumline(request: Request, error: Exception) -> Response:
    del request
    return error_response(error if isinstance(error, DrumlineError) else Internal("internal error"))


async def _on_validation(request: Request, error: Exception) -> Response:
    del request
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    return error_response(of_validation(problems))


async def _on_http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return error_response(NotFound("no such route"))
    if status == 405:
        response = error_response(InvalidRequest(f"{request.method[:16]} is not allowed here"), status=405)
        response.headers.update(getattr(error, "headers", None) or {})
        return response
    if status < 500:
        return error_response(InvalidRequest("the body cannot be read as JSON"), status=status)
    return error_response(Internal("internal error"))


async def _on_defect(request: Request, error: Exception) -> Response:
    # Starlette raises it again after this answer, and the server logs it with its traceback.
    del request, error
    return error_response(Internal("internal error"))


def install(app: FastAPI) -> None:
    """Makes every error of every route an error object."""
    app.add_exception_handler(DrumlineError, _on_drumline)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_defect)
