"""Reads a request's JSON body within limits, and cancels work whose client has disconnected."""

import asyncio
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from s2sent.service.errors import (
    DeadlineExceeded,
    MalformedRequest,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from s2sent.service.http.body_limits import JsonBudget
from s2sent.service.http.context import context_of
from s2sent.service.http.memory import FREE_BYTES, ByteBudget, Holding
from s2sent.service.http.validation_errors import invalid_input
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics
from s2sent.service.threads import pool_of

Body = TypeVar("Body", bound=BaseModel)
Result = TypeVar("Result")

# Bodies up to this size are parsed on the event loop, in a few milliseconds at most. Larger ones
# are parsed in a thread: orjson holds the GIL there too, but the validation that follows does not.
INLINE_BYTES = 262_144

_CLIENT_LEFT = "the client disconnected"


class BodyReader:
    """Reads request bodies as pydantic models, within the limits of the settings."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._memory = ByteBudget(
            settings.max_held_body_bytes,
            metrics,
            what="the bodies of all requests",
            setting="max_held_body_bytes",
        )
        # One thread, so that large bodies are parsed one at a time and the event loop competes
        # with one of them at most.
        self._executor = pool_of(1, "read-body")

    async def read(self, request: Request, schema: type[Body]) -> Body:
        """The request's body as ``schema``.

        Raises UnsupportedMediaType, PayloadTooLarge, MalformedRequest, EmptyInput or InvalidInput
        when the body cannot be used, Overloaded when there is no memory for it, DeadlineExceeded
        when it arrives too late, and ClientDisconnect when the client disconnects first.
        """
        _check_media_type(request)
        raw = await self._collect(request)
        context = context_of(request)
        context.body_read = time.perf_counter()
        parse = partial(_parse, raw, schema, max_texts=self._settings.max_client_batch_size)
        if len(raw) <= INLINE_BYTES:
            body = parse()
        else:
            body = await asyncio.get_running_loop().run_in_executor(self._executor, parse)
        seconds = time.perf_counter() - context.body_read
        self._metrics.deferred.add(self._metrics.parse_duration.observe, seconds)
        return body

    async def _collect(self, request: Request) -> bytes:
        limit = self._settings.max_body_bytes
        declared = request.headers.get("content-length", "")
        if declared.isdecimal():
            length = int(declared[:18])  # more digits than any limit has
            if length > limit:
                raise _too_large(limit)
            if length > FREE_BYTES:
                self._memory.check(length)
        budget, body = JsonBudget.of(self._settings), bytearray()
        holding = context_of(request).body_holding = Holding(self._memory)
        try:
            async with asyncio.timeout(self._settings.request_timeout_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise _too_large(limit)
                    holding.grow_to(len(body))
                    budget.feed(chunk)
        except ClientDisconnect:
            self._metrics.cancelled.labels("body").inc()
            raise
        except TimeoutError:
            self._metrics.timed_out.labels("body").inc()
            raise DeadlineExceeded(
                f"The body had not arrived after {self._settings.request_timeout_seconds:g} s."
                " Send it faster or in smaller requests."
            ) from None
        return bytes(body)


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``, which is cancelled if the client disconnects first.

    Call it after the body was read: from then on the only message a server sends is
    ``http.disconnect`` (ASGI HTTP specification). Raises ClientDisconnect.
    """
    worker = asyncio.current_task()
    assert worker is not None  # noqa: S101  # a coroutine runs in a task
    watcher = asyncio.create_task(_cancel_on_disconnect(worker, request))
    try:
        return await work
    except asyncio.CancelledError as cancelled:
        if cancelled.args != (_CLIENT_LEFT,):
            raise
        worker.uncancel()
        raise ClientDisconnect from None
    finally:
        watcher.cancel()


async def _cancel_on_disconnect(worker: asyncio.Task[Any], request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    worker.cancel(_CLIENT_LEFT)


def _parse(raw: bytes, schema: type[Body], *, max_texts: int) -> Body:
    try:
        return schema.model_validate(orjson.loads(raw), context={"max_texts": max_texts})
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(f"{_not_json(raw, error)} Send one JSON object in UTF-8.") from None
    except ValidationError as error:
        raise invalid_input(error) from None


def _not_json(raw: bytes, error: orjson.JSONDecodeError) -> str:
    if not raw:
        return "The body is empty."
    try:
        raw.decode()
    except UnicodeDecodeError as broken:  # orjson tells no place of it
        return f"The body is not UTF-8: byte {broken.start} is 0x{raw[broken.start]:02x}."
    return f"The body is not JSON: {error.msg}, at line {error.lineno}, column {error.colno}."


def _check_media_type(request: Request) -> None:
    declared = request.headers.get("content-type", "")
    media_type = declared.partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    if not is_json:
        given = f"is {declared[:80]!r}" if declared else "is missing"
        raise UnsupportedMediaType(f"Content-Type {given}; send application/json.")
    coding = request.headers.get("transfer-encoding", "chunked").strip().lower()
    if coding != "chunked":
        raise UnsupportedMediaType(
            f"Transfer-Encoding is {coding[:80]!r}; send chunked alone, or a Content-Length."
        )
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMediaType(
            f"Content-Encoding is {encoding[:80]!r}; send the body as it is."
        )


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The body is above the limit of {limit} bytes. Send fewer texts at once."
    )
