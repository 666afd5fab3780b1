"""/live, /ready, /health, /status and /metrics: how this gateway and what is behind it are."""

import json

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from drumline.errors import Draining, Unavailable
from gateway.answers import Health, Status, responses
from gateway.state import gateway_of

router = APIRouter(tags=["operate"])


@router.get("/live", summary="Is the process up", response_model=Health)
async def live() -> Health:
    """200 while the process answers at all. Needs no key."""
    return Health(status="ok")


@router.get("/ready", summary="Would a request be served", response_model=Health, responses=responses(None, 503))
async def ready(request: Request) -> Health:
    """200 when a model is served, the scheduler answers and an executor takes rows; else 503. Needs no key."""
    return _ready(request)


@router.get("/health", summary="As /ready", response_model=Health, responses=responses(None, 401, 503))
async def health(request: Request) -> Health:
    """The name that other servers use."""
    return _ready(request)


def _ready(request: Request) -> Health:
    gateway = gateway_of(request)
    if gateway.draining:
        raise Draining("the server is shutting down")
    if not gateway.is_ready():
        raise Unavailable("no executor is ready", retry_after_s=1)
    return Health(status="ok")


@router.get("/status", summary="Queues, rows and executors", response_model=None, responses=responses(Status, 401, 503))
async def status(request: Request) -> Response:
    """The scheduler's word about itself as of now; fields as in `scheduler.proto`'s GetStatusResponse."""
    known = await gateway_of(request).client.refresh_status()
    body = known.fields | {"executors": [dict(executor) for executor in known.executors]}
    return Response(json.dumps(body), media_type="application/json")


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_model=None,
    responses={**responses(None, 401), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """Text exposition."""
    return Response(gateway_of(request).metrics.expose(), media_type="text/plain; version=0.0.4; charset=utf-8")
