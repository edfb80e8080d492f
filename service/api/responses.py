"""Answers that carry numbers: straight from float32 arrays to bytes, and what they cost.

No Python object is made per number, and a long list is written in slices with a turn of the event
loop between them, so that one large answer does not hold up every small one.
"""

import asyncio
import base64
import time
from collections.abc import Sequence

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from service.api.input_types import Text
from service.api.schemas import EmbedOptions
from service.engine.types import EmbedResult
from service.http.body import unless_disconnected
from service.http.context import RequestContext, context_of
from service.http.tracing import trace_serialize, trace_stages

Rows = NDArray[np.float32]  # [n, dim], C-contiguous

JSON = "application/json"
RAW = "application/octet-stream"

# 64 rows of 384 numbers take about a millisecond to write.
_ROWS_PER_SLICE = 64


async def embed(request: Request, texts: Sequence[Text], options: EmbedOptions) -> EmbedResult:
    """The embeddings of ``texts``, not normalised, for as long as the client waits.

    Raises what the engine raises, InvalidInput for an unknown prompt or depth, and
    ClientDisconnect.
    """
    context = context_of(request)
    service = context.service
    service.check_depth(options.depth)
    settings = service.settings
    truncate = settings.auto_truncate if options.truncate is None else options.truncate
    work = service.engine.embed(
        texts,
        truncate=truncate,
        truncation_direction=options.truncation_direction,
        prompt=service.prompt(options.prompt_name),
        depth=options.depth,
        timeout_seconds=max(0.001, settings.request_timeout_seconds - context.elapsed_seconds()),
    )
    context.characters = sum(map(len, texts))
    if context.span is None:
        context.result = await unless_disconnected(request, work)
    else:
        context.span.set_attribute("s2sent.texts", len(texts))
        began_ns = time.time_ns()
        context.result = await unless_disconnected(request, work)
        trace_stages(context.span, context.result, began_ns=began_ns)
    return context.result


async def list_as_json(items: Sequence[object] | Rows) -> bytes:
    """A JSON array of ``items``, which may be, or hold, float32 arrays of finite numbers."""
    slices = []
    for start in range(0, len(items), _ROWS_PER_SLICE):
        if start:
            await asyncio.sleep(0)
        part = items[start : start + _ROWS_PER_SLICE]
        slices.append(orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])
    return b"[" + b",".join(slices) + b"]"


def little_endian_bytes(rows: Rows) -> bytes:
    """The numbers as little-endian float32, row after row."""
    return rows.astype("<f4", copy=False).tobytes()


def as_base64(row: Rows) -> str:
    """A row's numbers as base64 of little-endian float32, which is OpenAI's compact form."""
    return base64.b64encode(little_endian_bytes(row)).decode("ascii")


def answer(
    request: Request,
    result: EmbedResult,
    body: bytes,
    *,
    serialized_since: float,
    media_type: str = JSON,
    headers: dict[str, str] | None = None,
) -> Response:
    """A 200 with ``body`` and the headers that say what it took.

    ``serialized_since`` is the moment writing the body began, on the clock of time.perf_counter.
    """
    seconds = time.perf_counter() - serialized_since
    context = context_of(request)
    context.service.metrics.serialize_duration.observe(seconds)
    if context.span is not None:
        trace_serialize(context.span, seconds)
    cost = cost_headers(context, result)
    return Response(body, headers=cost | (headers or {}), media_type=media_type)


def cost_headers(context: RequestContext, result: EmbedResult) -> dict[str, str]:
    """The eight headers of text-embeddings-inference; times are whole milliseconds, rounded down.

    ``x-total-time`` begins with the request's head and ``x-compute-time`` with the end of its
    body; the other three are means over the request's texts.
    """
    now = time.perf_counter()
    return {
        "x-compute-type": context.service.compute_type,
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
