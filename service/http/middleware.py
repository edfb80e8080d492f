"""What surrounds every request: its id, its metrics, its log line, and an answer to any bug."""

import asyncio
import logging
import random
import re

from opentelemetry import trace
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import InternalError
from service.http.context import RequestContext, Service, current_request
from service.http.error_responses import CLIENT_CLOSED_REQUEST, error_response
from service.metrics import ROUTES

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-Id"
_VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")

# Aliases count as the route they stand for.
_ALIASES = {"POST /": "/embed", "POST /embeddings": "/v1/embeddings", "GET /ping": "/health"}
_PROBES = frozenset({"/health", "/ready", "/metrics"})


class ObserveRequests:
    """ASGI middleware, the outermost: gives each request an id and tells what became of it.

    An incoming ``X-Request-Id`` is taken over when it is short and plain. An exception that
    nobody handled is logged with its traceback and answered as InternalError without its text.
    """

    def __init__(self, app: ASGIApp, service: Service, *, traced: bool) -> None:
        self._app = app
        self._service = service
        self._metrics = service.metrics
        self._log_requests = service.settings.log_requests
        self._traced = traced

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        span = trace.get_current_span() if self._traced else None
        context = RequestContext(self._service, _request_id(scope), span)
        context.put_into(scope)
        token = current_request.set(context)
        status = CLIENT_CLOSED_REQUEST  # unless an answer begins

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = context.request_id
            await send(message)

        self._metrics.requests_in_flight.inc()
        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            logger.exception("a request failed in a way nobody foresaw")
            if status != CLIENT_CLOSED_REQUEST:
                raise  # the answer has begun; the server can only break it off
            error = InternalError(
                "Something went wrong here. The log has it under this answer's X-Request-Id."
            )
            await error_response(HTTPConnection(scope), error)(scope, receive, send_with_id)
        finally:
            seconds = context.elapsed_seconds()
            # Once the answer is on its way, which it is when the loop has come round.
            asyncio.get_running_loop().call_soon(self._record, scope, context, status, seconds)
            current_request.reset(token)

    def _record(self, scope: Scope, context: RequestContext, status: int, seconds: float) -> None:
        route = _route_label(scope)
        self._metrics.requests_in_flight.dec()
        self._metrics.requests.labels(route, status).inc()
        self._metrics.request_duration.labels(route).observe(seconds)
        level = logging.DEBUG if route in _PROBES else logging.INFO
        if self._log_requests and logger.isEnabledFor(level):
            fields = {
                "method": scope["method"],
                "route": route,
                "status": status,
                "duration_ms": round(seconds * 1000, 3),
                **({"key": context.key_name} if context.key_name else {}),
                **_work(context),
            }
            logger.log(level, "request", extra={"fields": fields})


def new_request_id() -> str:
    """An id for a request that brings none; a name, not a secret."""
    return f"{random.getrandbits(128):032x}"


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    return given if _VALID_REQUEST_ID.fullmatch(given) else new_request_id()


def _route_label(scope: Scope) -> str:
    """The route's template, never the path as sent: labels must stay few."""
    path = getattr(scope.get("route"), "path", "")
    label = _ALIASES.get(f"{scope['method']} {path}", path)
    return label if label in ROUTES else "other"


def _work(context: RequestContext) -> dict[str, object]:
    """What the engine did for a request: counts and times, no text."""
    result = context.result
    if result is None:
        return {}
    return {
        "texts": len(result.tokens),
        "tokens": sum(result.tokens),
        "truncated": sum(result.truncated),
        "tokenize_ms": round(result.tokenize_seconds * 1000, 3),
        "queue_ms": round(result.queue_seconds * 1000, 3),
        "inference_ms": round(result.inference_seconds * 1000, 3),
    }
