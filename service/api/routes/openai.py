"""The routes /v1/embeddings and /v1/models, compatible with OpenAI's clients."""

import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from s2sent.service import errors
from s2sent.service.api.details import (
    Details,
    details_as_json,
    usable_embeddings,
    with_nulls,
)
from s2sent.service.api.embedding import embed, read_body, service_of
from s2sent.service.api.encodings import as_json_items, encode, encoding_headers
from s2sent.service.api.openapi import EMBEDDING_ERRORS, failures, request_body, success
from s2sent.service.api.pieces import Pieces
from s2sent.service.api.responses import JSON, embedding_response, list_as_json
from s2sent.service.api.schemas.bodies import OpenAIEmbeddingsBody

router = APIRouter(tags=["openai"])


class Embedding(BaseModel):
    """One embedding of an answer."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str | None


class Usage(BaseModel):
    """Tokens embedded, after truncation, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """Answer of /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage
    details: Details | None = Field(None, description="Only where the request asks for details.")


class Model(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    fingerprint: str = Field(
        description="As the header x-model-fingerprint of a request without depth."
    )
    fingerprints_by_depth: dict[int, str] = Field(description="Likewise for each depth.")


class ModelList(BaseModel):
    """Answer of /v1/models."""

    object: Literal["list"]
    data: list[Model]


@router.post("/embeddings", include_in_schema=False)
@router.post(
    "/v1/embeddings",
    summary="Embed texts, OpenAI's way",
    openapi_extra=request_body(
        OpenAIEmbeddingsBody,
        {"input": ["A man is playing a guitar."], "model": "any"},
        embeds=True,
    ),
    responses={
        **failures(*EMBEDDING_ERRORS, openai=True),
        200: success(
            EmbeddingList, "One normalised embedding per text.", embeddings=True, encoded=True
        ),
    },
)
async def create_embeddings(request: Request) -> Response:
    """One normalised embedding per text. The model's name is not checked."""
    service = service_of(request)
    body = await read_body(request, OpenAIEmbeddingsBody)
    dimensions = service.dimensions(body.dimensions)
    skip_failed = body.on_error == "null"
    result = await embed(request, body.input, body, skip_failed=skip_failed)
    since = time.perf_counter()
    embeddings, errors = usable_embeddings(
        result, dimensions=dimensions, normalize=True, skip_failed=skip_failed
    )
    encoding = body.encoding_format
    rows = as_json_items(encode(embeddings, encoding), encoding)
    data = await list_as_json(request, _data(with_nulls(rows, errors)))
    details = details_as_json(request, result, errors) if body.details else None
    content = _embedding_list(data, service.model_name, sum(result.tokens), details)
    headers = encoding_headers(encoding, embeddings.shape[1])
    return embedding_response(request, result, content, serialized_since=since, headers=headers)


@router.head("/v1/models", include_in_schema=False)
@router.get(
    "/v1/models",
    summary="The model that is served",
    responses={
        **failures(
            *(errors.Unauthorized, errors.QuotaExceeded, errors.InternalError, errors.NotReady),
            openai=True,
        ),
        200: success(ModelList, "A list of one."),
    },
)
async def list_models(request: Request) -> Response:
    """The served model, as a list of one."""
    service = service_of(request)
    model = Model(
        id=service.model_name,
        object="model",
        created=service.started_at,
        owned_by="s2sent",
        fingerprint=service.fingerprint(service.depth(None)),
        fingerprints_by_depth={d: service.fingerprint(d) for d in service.manifest.all_depths},
    )
    return Response(ModelList(object="list", data=[model]).model_dump_json(), media_type=JSON)


def _data(rows: Sequence[object] | NDArray[np.generic]) -> list[dict[str, object]]:
    return [
        {"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)
    ]


def _embedding_list(data: Pieces, model: str, tokens: int, details: bytes | None) -> Pieces:
    """An EmbeddingList as JSON; ``data`` and ``details`` are JSON already."""
    usage = orjson.dumps({"prompt_tokens": tokens, "total_tokens": tokens})
    more = b',"details":%b' % details if details else b""
    rest = b',"model":%b,"usage":%b%b}' % (orjson.dumps(model), usage, more)
    return [b'{"object":"list","data":', *data, rest]
