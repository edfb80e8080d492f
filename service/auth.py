"""API keys: who may ask.

Every path needs a key, if any is configured, except those that probes and readers of the
documentation use. Keys are kept and compared as SHA-256 digests, each given key against every
accepted one, so the time taken tells nothing about a key or its length.
"""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from service.envelopes import error_response
from service.errors import Unauthorized

OPEN_PATHS = frozenset({"/health", "/ping", "/ready", "/docs", "/openapi.json"})
METRICS_PATH = "/metrics"


class ApiKeys:
    """A fixed set of accepted keys."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def accepts(self, authorization: str | None) -> bool:
        """Whether an ``Authorization`` header holds a key, in the form ``Bearer <key>``."""
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        # Not any(): it would stop at the key that fits.
        fits = sum(hmac.compare_digest(given, accepted) for accepted in self._digests)
        return scheme.lower() == "bearer" and fits > 0


class RequireApiKey:
    """ASGI middleware that answers 401 to a request without an accepted key."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, *, metrics_require_key: bool) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = OPEN_PATHS if metrics_require_key else OPEN_PATHS | {METRICS_PATH}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        authorization = connection.headers.get("authorization")
        if self._keys.accepts(authorization):
            await self._app(scope, receive, send)
            return
        problem = "is not known" if authorization else "is missing"
        error = Unauthorized(f"The API key {problem}. Send Authorization: Bearer <key>.")
        await error_response(connection, error)(scope, receive, send)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
