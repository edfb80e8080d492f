"""Error responses: one JSON envelope per dialect, for every error the service can answer with.

Native routes answer ``{"error": message, "error_type": type}`` as text-embeddings-inference does;
``/v1`` and its alias answer ``{"error": {"message", "type", "param", "code"}}`` as OpenAI does.
"""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from s2sent.service.errors import (
    InternalError,
    MethodNotAllowed,
    NotFound,
    ServiceError,
    Unauthorized,
)

CLIENT_CLOSED_REQUEST = 499  # as in nginx; appears in the log and the metrics only


def speaks_openai(path: str) -> bool:
    return path.startswith("/v1/") or path in ("/v1", "/embeddings")


def error_response(path: str, error: ServiceError) -> Response:
    """The response for an error, in the dialect of the request's path."""
    openai = speaks_openai(path)
    headers = {}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"  # RFC 6750, section 3
    return Response(
        orjson.dumps(_openai_body(error) if openai else _native_body(error)),
        status_code=error.openai_status if openai else error.status,
        headers=headers,
        media_type="application/json",
    )


async def on_service_error(request: Request, error: Any) -> Response:
    """Answer a ServiceError. (Starlette types every handler's error as Exception.)"""
    return error_response(request.scope["path"], error)


async def on_http_exception(request: Request, error: Any) -> Response:
    """Answer an HTTPException of the framework, which are 404 and 405, keeping its headers."""
    response = error_response(request.scope["path"], _translate(request, error.status_code))
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["Allow"] = _methods(request)
    return response


async def on_client_disconnect(_request: Request, _error: Exception) -> Response:
    """End a request whose client disconnected; nothing is sent, the log and metrics say 499."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def _methods(request: Request) -> str:
    """Every method of a path; the framework's own Allow has those of its first route only."""
    path = request.scope["path"]
    routes = (route for route in request.app.routes if route.path_regex.match(path))
    return ", ".join(sorted({method for route in routes for method in route.methods or ()}))


def _native_body(error: ServiceError) -> dict[str, object]:
    return {"error": error.message, "error_type": error.error_type}


def _openai_body(error: ServiceError) -> dict[str, object]:
    return {
        "error": {
            "message": error.message,
            "type": error.openai_type,
            "param": error.param,
            "code": error.error_type,
        }
    }


def _translate(request: Request, status: int) -> ServiceError:
    method, path = request.method, request.scope["path"][:80]
    match status:
        case 404:
            return NotFound(f"There is no route {path}. See /docs for those there are.")
        case 405:
            return MethodNotAllowed(f"{path} does not answer to {method}. See /docs.")
        case _:
            return InternalError("Something went wrong here. The log has it under the request id.")
