"""The outermost middleware: request id, metrics, access log, and the 500 for an unhandled error."""

import asyncio
import logging
import random
import re
from collections.abc import Mapping

from opentelemetry import trace
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from s2sent.service.engine.admission import not_ready
from s2sent.service.engine.types import EmbedResult
from s2sent.service.errors import InternalError
from s2sent.service.http.context import RequestContext
from s2sent.service.http.error_responses import CLIENT_CLOSED_REQUEST, error_response
from s2sent.service.http.tracing import trace_id_of
from s2sent.service.lanes import Lane
from s2sent.service.telemetry.logs import log_fields
from s2sent.service.telemetry.metrics import ROUTES, Metrics

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-Id"
REQUEST_ID_FIELD = REQUEST_ID_HEADER.lower().encode()  # as ASGI has it
_VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")

# Aliases count as the route they stand for.
_ALIASES = {
    "POST /": "/embed",
    "POST /embeddings": "/v1/embeddings",
    "GET /ping": "/health",
    "HEAD /ping": "/health",
}
_PROBES = frozenset({"/health", "/ready", "/metrics"})


class ObserveRequests:
    """ASGI middleware that gives each request an id and records its outcome.

    An incoming ``X-Request-Id`` is kept when it has at most 128 plain characters. An exception
    that no handler caught is logged with its traceback and answered as InternalError, without the
    exception's text. ``traced`` says whether FastAPI makes a span for each request.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, log_requests: bool, traced: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._log_requests = log_requests
        self._traced = traced
        self._in_flight = 0
        metrics.requests_in_flight.set_function(lambda: self._in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        span = trace.get_current_span() if self._traced else None
        context = RequestContext.attach(scope, request_id_of(dict(scope["headers"])), span)
        token = log_fields.set(_identity(context))
        request_id = (REQUEST_ID_FIELD, context.request_id.encode())
        status = CLIENT_CLOSED_REQUEST  # unless a response begins

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], request_id]
            await send(message)

        self._in_flight += 1
        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # the server ends, and nothing else waits for the request
            if status != CLIENT_CLOSED_REQUEST:
                raise
            error = not_ready("draining")
            await error_response(scope["path"], error)(scope, receive, send_with_id)
        except Exception:  # the edge of a request: it gets an answer, the log the traceback
            logger.exception("unhandled error while answering a request")
            if status != CLIENT_CLOSED_REQUEST:
                raise  # the response has begun; the server closes the connection
            bug = InternalError(
                "Something went wrong here. The log has it under this answer's X-Request-Id."
            )
            await error_response(scope["path"], bug)(scope, receive, send_with_id)
        finally:
            self._in_flight -= 1
            context.release_memory()
            seconds = context.elapsed_seconds()
            self._metrics.deferred.add(self._record, scope, context, status, seconds)
            log_fields.reset(token)

    def _record(self, scope: Scope, context: RequestContext, status: int, seconds: float) -> None:
        result, context.result = context.result, None  # its connection may stay open, idle
        route = context.route or _route_label(scope)
        self._metrics.requests.labels(route, status).inc()
        self._metrics.request_duration[route].observe(seconds)
        level = logging.DEBUG if route in _PROBES else logging.INFO
        if self._log_requests and logger.isEnabledFor(level):
            log_fields.set(_identity(context))  # of this call's own context, not of a request's
            fields = {
                "method": scope["method"],
                "route": route,
                "status": status,
                "duration_ms": _milliseconds(seconds),
                **({"key": context.key_name} if context.key_name else {}),
                **_work(result, context.lane),
            }
            logger.log(level, "request", extra={"fields": fields})


def _identity(context: RequestContext) -> dict[str, str | None]:
    """The log fields that say which request a line is about."""
    trace_id = trace_id_of(context.span) if context.span else None
    return {"request_id": context.request_id, "trace_id": trace_id}


def new_request_id() -> str:
    """A random id for a request that brings none; it is a name, not a secret."""
    return f"{random.getrandbits(128):032x}"


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The id in a request's headers, or a new one where it has none that can be used."""
    given = headers.get(REQUEST_ID_FIELD, b"").decode("latin-1")
    return given if _VALID_REQUEST_ID.fullmatch(given) else new_request_id()


def _route_label(scope: Scope) -> str:
    """The route, also of a request that was refused before; "other" for every other path."""
    path = scope["path"]
    label = _ALIASES.get(f"{scope['method']} {path}", path)
    return label if label in ROUTES else "other"


def _work(result: EmbedResult | None, lane: Lane | None) -> dict[str, object]:
    """What the engine did for a request: counts and times, no text."""
    if result is None:
        return {}
    return {
        "texts": len(result.tokens),
        "tokens": sum(result.tokens),
        "truncated": sum(result.truncated),
        "lane": lane,
        "tokenize_ms": _milliseconds(result.tokenize_seconds),
        "queue_ms": _milliseconds(result.queue_seconds),
        "inference_ms": _milliseconds(result.inference_seconds),
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
