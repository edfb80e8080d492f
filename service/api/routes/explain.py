"""The route /explain: the tokens of each text, and how the selector weighs the encoder's blocks."""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from s2sent.service.api.embedding import (
    Service,
    embed,
    read_body,
    remaining_seconds,
    service_of,
)
from s2sent.service.api.openapi import EMBEDDING_ERRORS, failures, request_body, success
from s2sent.service.api.pieces import hold_answer
from s2sent.service.api.responses import array_of, embedding_response
from s2sent.service.api.schemas.bodies import ExplainBody
from s2sent.service.engine.types import EmbedResult
from s2sent.service.errors import InvalidInput
from s2sent.service.http.body import unless_disconnected
from s2sent.service.http.context import context_of

# Bytes of a weight as the engine gives it, and as JSON.
WEIGHT_BYTES = 4
FEATURE_BYTES = 12

router = APIRouter(tags=["native"], responses=failures(*EMBEDDING_ERRORS))


class BlockWeight(BaseModel):
    """How much of one block is in a text's embedding."""

    block: int = Field(description="The block's number, from 1; 0 is the embedding output.")
    mean: float = Field(description="Mean of the weights of its features.")
    min: float = Field(description="The least of them.")
    max: float = Field(description="The largest of them.")
    features: list[float] | None = Field(None, description="All of them, where asked for.")


class ExplainedText(BaseModel):
    """What one text is made of, and its block weights."""

    tokens: list[str] = Field(description="What was embedded, as the vocabulary spells it.")
    truncated: bool = Field(description="Whether the text was cut because it is too long.")
    blocks: list[BlockWeight] = Field(description="The blocks that are fused, shallowest first.")


class Explanation(BaseModel):
    """Answer of /explain."""

    model_fingerprint: str = Field(description="As the header x-model-fingerprint.")
    texts: list[ExplainedText] = Field(description="One per text, in order.")


@router.post(
    "/explain",
    summary="Explain embeddings",
    openapi_extra=request_body(
        ExplainBody,
        {"inputs": ["A man is playing a guitar.", "Someone plays music."]},
        embeds=True,
    ),
    responses={
        200: success(Explanation, "The tokens and the block weights of each text.", embeddings=True)
    },
)
async def explain_texts(request: Request) -> Response:
    """Per text its tokens, and the weights by which its blocks are summed up."""
    service = service_of(request)
    body = await read_body(request, ExplainBody)
    _require_weights(service)
    blocks = len(service.manifest.fused_blocks(service.depth(body.depth)))
    numbers = len(body.inputs) * blocks * service.manifest.dim
    hold_answer(request, numbers * (WEIGHT_BYTES + body.features * FEATURE_BYTES))
    result = await embed(request, body.inputs, body, weights=True)
    work = service.engine.apply_tokenizer(
        lambda tokenizer, ids: tokenizer.tokens(ids),
        result.token_ids,
        timeout_seconds=remaining_seconds(request),
        admitted=True,
    )
    tokens = await unless_disconnected(request, work)
    since = time.perf_counter()
    depth = context_of(request).depth
    explanations = _explanations(
        result, tokens, service.manifest.fused_blocks(depth), features=body.features
    )
    texts = await array_of(request, explanations)
    fingerprint = service.fingerprint(depth).encode()
    content = [b'{"model_fingerprint":"%b","texts":' % fingerprint, *texts, b"}"]
    return embedding_response(request, result, content, serialized_since=since)


def _explanations(
    result: EmbedResult, tokens: Sequence[Sequence[str]], numbers: range, *, features: bool
) -> Iterator[bytes]:
    """`ExplainedText`s as JSON; ``numbers`` are those of the fused blocks."""
    weights = result.embeddings.reshape(len(tokens), len(numbers), -1)
    for own, truncated, rows in zip(tokens, result.truncated, weights, strict=True):
        blocks = _blocks(numbers, rows, features=features)
        text = {"tokens": own, "truncated": truncated, "blocks": blocks}
        yield orjson.dumps(text, option=orjson.OPT_SERIALIZE_NUMPY)


def _blocks(
    numbers: range, weights: NDArray[np.float32], *, features: bool
) -> list[dict[str, object]]:
    """`BlockWeight`s of one text from its weights [blocks, dim]."""
    statistics = zip(numbers, weights.mean(1), weights.min(1), weights.max(1), weights, strict=True)
    return [
        {"block": number, "mean": mean, "min": least, "max": most}
        | ({"features": row} if features else {})
        for number, mean, least, most, row in statistics
    ]


def _require_weights(service: Service) -> None:
    """Raise InvalidInput where the model has no block weights to give."""
    if service.engine.model.has_block_weights:
        return
    cure = (
        "Export its checkpoint again with s2sent-train export."
        if service.manifest.selector
        else "It has no selector: serve a model that was trained with one."
    )
    raise InvalidInput(f"The graph of {service.model_name} gives no block weights. {cure}")
