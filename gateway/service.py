"""The ASGI application: routes inside, guards around them, from the outside in.

RequestContext   a name, a log line, a count
HeaderLimits     431
CORS             only when origins are named
ApiKeys          401, on every path but /live and /ready
BodyLimits       413, 408
routes           errors become OpenAI's error object
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from drumline.version import SOFTWARE_VERSION
from gateway import chat, completions, errors, health, models, tokens
from gateway.auth import ApiKeys
from gateway.config import GatewaySettings
from gateway.context import RequestContext
from gateway.limits import BodyLimits, HeaderLimits
from gateway.state import Gateway


def create_app(settings: GatewaySettings) -> tuple[ASGIApp, Gateway]:
    """The application and the state behind it. Its lifespan dials the scheduler. Raises SettingsError for a file without keys."""
    gateway = Gateway(settings)
    routes = _routes(gateway)
    app: ASGIApp = BodyLimits(routes, timeout_s=settings.body_timeout_s)
    app = ApiKeys(app, keys=settings.keys())
    if settings.cors_origin:
        app = CORSMiddleware(app, allow_origins=settings.cors_origin, allow_methods=["GET", "POST"], allow_headers=["*"])
    app = HeaderLimits(app)
    return RequestContext(app, metrics=gateway.metrics), gateway


def _routes(gateway: Gateway) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        await gateway.start()
        yield
        await gateway.stop()

    # The documentation's scripts and styles come from the package, not from a content network.
    app: FastAPI = FastAPIOffline(title="Drumline", version=SOFTWARE_VERSION, lifespan=lifespan, redirect_slashes=False)
    app.state.gateway = gateway
    for module in (chat, completions, models, tokens, health):
        app.include_router(module.router)
    errors.install(app)
    _describe_errors_as_ours(app)
    return app


def _describe_errors_as_ours(app: FastAPI) -> None:
    """FastAPI documents its own 422, which no route here ever sends: bad bodies are 400."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        document = describe()
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
