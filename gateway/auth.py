"""API keys: every route but two asks for one, decided on the bytes of the path that came in, never on a rebuilt URL."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, cast

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from drumline.errors import Unauthenticated
from gateway.errors import error_response

PUBLIC_PATHS: Final = frozenset({b"/live", b"/ready"})
_TENANT_KEY: Final = "tenant"


class ApiKeys:
    """ASGI middleware. With no keys it lets everything pass, all in the common tenant.

    A key's tenant is a digest of it, so prefixes are shared only among requests with the same key, and the key itself goes no
    further than this module.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._digests:
            await self._app(scope, receive, send)
            return
        tenant = self._tenant(scope)
        if tenant is None and scope.get("raw_path") not in PUBLIC_PATHS:
            refused = error_response(Unauthenticated("a valid API key is needed: send `Authorization: Bearer KEY`"))
            await refused(scope, receive, send)
            return
        scope.setdefault("state", {})[_TENANT_KEY] = tenant or ""
        await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        """The tenant of the request's key, or None. All keys are compared, whole digests in constant time."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = (given[0] if len(given) == 1 else b"").partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return f"key-{digest.hex()[:32]}" if found and scheme.lower() == b"bearer" else None


def tenant_of(connection: HTTPConnection) -> str:
    """The tenant of a request; empty = the common one."""
    return cast(str, connection.scope.get("state", {}).get(_TENANT_KEY, ""))
