"""API-key authentication: the middleware that requires a key and applies its rate limits.

If any key is configured, every path needs one except those of probes and of the documentation.
Keys are kept and compared as SHA-256 digests, each given key against every accepted one, so the
time taken reveals nothing about a key or its length.
"""

import hmac
from collections.abc import Sequence
from functools import partial
from typing import Self

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from s2sent.service.access.api_keys import Key, KeyFile, UnusableKeys, digest_of
from s2sent.service.access.rate_limits import Limiter
from s2sent.service.errors import ServiceError, Unauthorized
from s2sent.service.http.context import context_of
from s2sent.service.http.error_responses import error_response
from s2sent.service.settings import Settings, SettingsError

OPEN_PATHS = frozenset(
    {"/health", "/ping", "/ready", "/docs", "/docs/plain", "/openapi.json", "/playground"}
)
STATIC_PREFIX = "/static/"  # the playground's files
HOME_METHODS = ("GET", "HEAD")  # of /, whose POST embeds
METRICS_PATH = "/metrics"


class ApiKeys:
    """The accepted keys: fixed ones, and those of a file, which may change."""

    def __init__(self, keys: Sequence[str], file: KeyFile | None = None) -> None:
        self._keys = tuple(Key(digest_of(key)) for key in keys)
        self._file = file

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """The keys of the settings, None if these require no key; raises SettingsError."""
        keys = [key.get_secret_value() for key in settings.api_keys]
        if settings.api_keys_file is None:
            return cls(keys) if keys else None
        try:
            return cls(keys, KeyFile(settings.api_keys_file))
        except UnusableKeys as error:
            raise SettingsError([f"api_keys_file: {error}"]) from None

    def find(self, authorization: str | None) -> Key | None:
        """The accepted key in an ``Authorization: Bearer <key>`` header, or None.

        A key that the file has since a moment ago is found: several HTTP processes would
        otherwise disagree on it until each has checked the file.
        """
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest = digest_of(given.strip(" \t").encode("latin-1"))  # as Starlette decodes headers
        key = _matching(digest, self._keys)
        if key is None and self._file:
            key = _matching(digest, self._file.current()) or _matching(digest, self._file.latest())
        return key


def _matching(digest: bytes, keys: Sequence[Key]) -> Key | None:
    """The key with a digest; each is compared, so the time taken does not tell its position."""
    found = [key for key in keys if hmac.compare_digest(digest, key.digest)]
    return found[0] if found else None


class RequireApiKey:
    """ASGI middleware: 401 to a request without an accepted key, 429 to one over its limit."""

    def __init__(
        self, app: ASGIApp, keys: ApiKeys, limiter: Limiter, *, metrics_require_key: bool
    ) -> None:
        self._app = app
        self._keys = keys
        self._limiter = limiter
        self._open_paths = OPEN_PATHS if metrics_require_key else OPEN_PATHS | {METRICS_PATH}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        try:
            key = await self._admit(connection)
        except ServiceError as error:
            await error_response(scope["path"], error)(scope, receive, send)
            return
        context_of(connection).charge = partial(self._limiter.charge, key)
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        """Whether a request needs no key: what it gets says nothing of the model or its use."""
        path: str = scope["path"]
        if path == "/":
            return scope["method"] in HOME_METHODS
        return path in self._open_paths or path.startswith(STATIC_PREFIX)

    async def _admit(self, connection: HTTPConnection) -> Key:
        """The key the request came with; raises Unauthorized or QuotaExceeded."""
        authorization = connection.headers.get("authorization")
        key = self._keys.find(authorization)
        if key is None:
            raise Unauthorized(f"{_problem(authorization)}. Send Authorization: Bearer <key>.")
        context = context_of(connection)
        context.key_name, context.key_lane = key.name, key.priority
        await self._limiter.admit(key)
        return key


def _problem(authorization: str | None) -> str:
    """What is wrong with a header of which no key was accepted; it never repeats a credential."""
    if not authorization:
        return "The API key is missing"
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return "Authorization does not begin with Bearer"
    return "The API key is not known" if given.strip() else "The API key is empty"
