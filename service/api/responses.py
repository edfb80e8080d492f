"""Writes embeddings and scores as response bodies (JSON, raw) with the cost headers.

float32 arrays become bytes without a Python object per number. A long list is written in slices,
yielding to the event loop between them, so that a large response does not delay small ones.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Sequence

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from s2sent.service.api.embedding import serializing, service_of
from s2sent.service.api.pieces import Pieces, answer_of, hold_answer
from s2sent.service.engine.types import EmbedResult
from s2sent.service.http.body import unless_disconnected
from s2sent.service.http.context import RequestContext, context_of
from s2sent.service.http.tracing import trace_serialize

JSON = "application/json"
RAW = "application/octet-stream"
_JSON_RANGES = (JSON, "application/*", "*/*")  # the most specific one counts
_WEIGHT = re.compile(r"q=([01](?:\.[0-9]{0,3})?)")

Items = Sequence[object] | NDArray[np.generic]

# Writing 64 embeddings of 384 numbers takes about a millisecond.
_ITEMS_PER_SLICE = 64


def prefers_raw(request: Request) -> bool:
    """Whether ``Accept`` names raw numbers, and JSON with no more weight (RFC 9110, 12.5.1).

    A range such as ``*/*`` counts for JSON alone, so that a client has to ask for raw numbers.
    """
    weights: dict[str, float] = {}
    for line in request.headers.getlist("accept"):
        for media_range in line.lower().split(","):
            name, *parameters = (part.strip() for part in media_range.split(";"))
            weights[name] = _weight(parameters)
    raw = weights.get(RAW, 0.0)
    json = next((weights[name] for name in _JSON_RANGES if name in weights), 0.0)
    return raw > 0 and raw >= json


def _weight(parameters: Sequence[str]) -> float:
    """The ``q`` among the parameters of a media range, by default 1."""
    for parameter in parameters:
        if match := _WEIGHT.fullmatch(parameter):
            return float(match[1])
    return 1.0


async def list_as_json(request: Request, items: Items) -> Pieces:
    """A JSON array of ``items``, which may be, or contain, arrays of finite numbers.

    Raises what `array_of` raises, where the list is long.
    """
    if len(items) <= _ITEMS_PER_SLICE:
        return [_dumped(items)]
    slices = range(0, len(items), _ITEMS_PER_SLICE)
    return await array_of(
        request, (_dumped(items[at : at + _ITEMS_PER_SLICE])[1:-1] for at in slices)
    )


async def array_of(request: Request, items: Iterable[bytes]) -> Pieces:
    """A JSON array of ``items``, which are JSON, or several with commas between them.

    Raises what `serializing` raises, ClientDisconnect and Overloaded.
    """
    return await unless_disconnected(request, _array(request, items))


async def _array(request: Request, items: Iterable[bytes]) -> Pieces:
    pieces, length = list[bytes](), 0
    async with serializing(request):
        for item in items:
            pieces += (b"," if pieces else b"[", item)
            length += len(item)
            hold_answer(request, length)
            await asyncio.sleep(0)  # let the event loop serve others
    return [*pieces, b"]"]


def _dumped(items: Items) -> bytes:
    return orjson.dumps(items, option=orjson.OPT_SERIALIZE_NUMPY)


def embedding_response(
    request: Request,
    result: EmbedResult,
    body: Pieces,
    *,
    serialized_since: float,
    media_type: str = JSON,
    headers: dict[str, str] | None = None,
) -> Response:
    """A 200 with ``body``, the cost headers, and which model made it of how many cut texts.

    ``serialized_since`` is when writing the body began, on the clock of `time.perf_counter`.
    """
    seconds = time.perf_counter() - serialized_since
    service, context = service_of(request), context_of(request)
    service.metrics.deferred.add(service.metrics.serialize_duration.observe, seconds)
    if context.span is not None:
        trace_serialize(context.span, seconds)
    cost = {
        "x-compute-type": service.compute_type,
        **cost_headers(context, result),
        "x-truncated": str(sum(result.truncated)),
        "x-model-fingerprint": service.fingerprint(context.depth),
    }
    return answer_of(request, body, headers=cost | (headers or {}), media_type=media_type)


def cost_headers(context: RequestContext, result: EmbedResult) -> dict[str, str]:
    """text-embeddings-inference's cost headers; times are whole milliseconds, rounded down.

    ``x-total-time`` starts at the request's head and ``x-compute-time`` at the end of its body;
    the other times are means over the request's texts.
    """
    now = time.perf_counter()
    return {
        "x-compute-time": _milliseconds(now - context.body_read),
        "x-compute-characters": str(context.characters),
        "x-compute-tokens": str(sum(result.tokens)),
        "x-total-time": _milliseconds(now - context.started),
        "x-tokenization-time": _milliseconds(result.tokenize_seconds),
        "x-queue-time": _milliseconds(result.queue_seconds),
        "x-inference-time": _milliseconds(result.inference_seconds),
    }


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
