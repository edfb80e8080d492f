"""Reading a request: its JSON body, within limits, and whether its client is still there."""

import asyncio
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from service.errors import (
    DeadlineExceeded,
    MalformedRequest,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from service.http.body_limits import Structure
from service.http.context import context_of, service_of
from service.http.disconnect import DEPARTURE, Departure
from service.http.validation_errors import invalid_input

Body = TypeVar("Body", bound=BaseModel)
Result = TypeVar("Result")

# Up to here a body is parsed on the loop, which takes a few milliseconds at most. For a larger one
# the loop then waits for orjson alone, which holds Python's lock, and not for the checks as well.
INLINE_BYTES = 262_144

_CLIENT_LEFT = "the client left"


async def read_body(request: Request, schema: type[Body]) -> Body:
    """The request's body as ``schema``.

    Raises UnsupportedMediaType, PayloadTooLarge, MalformedRequest, EmptyInput or InvalidInput when
    it cannot be used, DeadlineExceeded when it comes too late, ClientDisconnect when it never will.
    """
    _check_media_type(request)
    context = context_of(request)
    service, raw = context.service, await _collect(request)
    context.body_read = time.perf_counter()
    parse = partial(_parse, raw, schema, max_texts=service.settings.max_client_batch_size)
    if len(raw) <= INLINE_BYTES:
        body = parse()
    else:
        body = await asyncio.get_running_loop().run_in_executor(service.body_reader, parse)
    service.metrics.parse_duration.observe(time.perf_counter() - context.body_read)
    return body


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``, which is cancelled when the client goes away first.

    To be called after the body was read: from then on the only message a server sends is
    ``http.disconnect`` (ASGI HTTP specification). Raises ClientDisconnect.
    """
    worker = asyncio.current_task()
    assert worker is not None  # noqa: S101  # a coroutine runs in a task
    departure: Departure = request.scope.get(DEPARTURE) or Departure()
    leave = partial(worker.cancel, _CLIENT_LEFT)
    # A server other than ours says it in a message, for which somebody has to wait.
    watching = None if DEPARTURE in request.scope else _watch(request, departure)
    departure.watch(leave)
    try:
        return await work
    except asyncio.CancelledError as cancelled:
        if cancelled.args != (_CLIENT_LEFT,):
            raise
        worker.uncancel()
        raise ClientDisconnect from None
    finally:
        departure.unwatch(leave)
        if watching:
            watching.cancel()


def _parse(raw: bytes, schema: type[Body], *, max_texts: int) -> Body:
    try:
        return schema.model_validate(orjson.loads(raw), context={"max_texts": max_texts})
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(
            f"The body is not JSON: it breaks at line {error.lineno}, column {error.colno}. "
            "Send one JSON object in UTF-8."
        ) from None
    except ValidationError as error:
        raise invalid_input(error) from None


def _watch(request: Request, departure: Departure) -> asyncio.Task[None]:
    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        departure.come()

    return asyncio.create_task(watch())


def _check_media_type(request: Request) -> None:
    declared = request.headers.get("content-type", "")
    media_type = declared.partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    if not is_json:
        given = f"is {declared[:80]!r}" if declared else "is missing"
        raise UnsupportedMediaType(f"Content-Type {given}; send application/json.")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaType(
            f"Content-Encoding is {encoding[:80]!r}; send the body as it is."
        )


async def _collect(request: Request) -> bytes:
    settings = service_of(request).settings
    limit, structure = settings.max_body_bytes, Structure.allowed_by(settings)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:18]) > limit:  # more digits than any limit has
        raise _too_large(limit)
    body = bytearray()
    more_body = True
    try:
        async with asyncio.timeout(settings.request_timeout_seconds):
            while more_body:
                message = await request.receive()  # `Request.stream` has a layer of its own
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunk, more_body = message.get("body", b""), message.get("more_body", False)
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
                structure.add(chunk)
    except TimeoutError:
        raise DeadlineExceeded(
            f"The body had not arrived after {settings.request_timeout_seconds:g} s."
            " Send it faster or in smaller requests."
        ) from None
    return bytes(body)


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The body is above the limit of {limit} bytes. Send fewer texts at once."
    )
