"""The routes /embed, / and /similarity, compatible with text-embeddings-inference."""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from s2sent.service.api.details import (
    DetailedEmbeddings,
    details_as_json,
    usable_embeddings,
    with_nulls,
)
from s2sent.service.api.embedding import embed, read_body, service_of
from s2sent.service.api.encodings import as_json_items, check_scale, encode, encoding_headers
from s2sent.service.api.openapi import EMBEDDING_ERRORS, failures, request_body, success
from s2sent.service.api.prompts import named_prompt, prompt_of
from s2sent.service.api.responses import (
    RAW,
    array_of,
    embedding_response,
    list_as_json,
    prefers_raw,
)
from s2sent.service.api.schemas.bodies import EmbedBody, RootBody
from s2sent.service.api.schemas.similarity import RankedDocument, RankingForm, SimilarityBody
from s2sent.service.api.vectors import (
    UnitEmbeddings,
    paired_cosines,
    ranked_cosines,
    to_unit,
)
from s2sent.service.engine.types import EmbedResult, OtherTexts
from s2sent.service.errors import InvalidInput
from s2sent.service.http.context import context_of

router = APIRouter(tags=["native"], responses=failures(*EMBEDDING_ERRORS))


@router.post("/", include_in_schema=False)
async def embed_or_compare(request: Request) -> Response:
    """The answer of /similarity where ``inputs`` is an object, else that of /embed."""
    body = (await read_body(request, RootBody)).root
    if isinstance(body, SimilarityBody):
        context_of(request).route = "/similarity"
        return await _similarities(request, body)
    return await _embeddings(request, body)


@router.post(
    "/embed",
    summary="Embed texts",
    openapi_extra=request_body(
        EmbedBody,
        {"inputs": ["A man is playing a guitar.", "Someone plays music."]},
        embeds=True,
    ),
    responses={
        200: success(
            list[list[float] | str | None] | DetailedEmbeddings,
            "One embedding per text; with details an object.",
            embeddings=True,
            raw=True,
            encoded=True,
        )
    },
)
async def embed_texts(request: Request) -> Response:
    """One embedding per text, in order; raw numbers if ``Accept`` names octet-stream."""
    return await _embeddings(request, await read_body(request, EmbedBody))


async def _embeddings(request: Request, body: EmbedBody) -> Response:
    dimensions = service_of(request).dimensions(body.dimensions)
    raw = prefers_raw(request)
    skip_failed = body.on_error == "null"
    check_scale(body.encoding, normalize=body.normalize)
    if raw:
        _check_raw(body)
    result = await embed(request, body.inputs, body, skip_failed=skip_failed)
    since = time.perf_counter()
    embeddings, errors = usable_embeddings(
        result, dimensions=dimensions, normalize=body.normalize, skip_failed=skip_failed
    )
    headers = encoding_headers(body.encoding, embeddings.shape[1])
    rows = encode(embeddings, body.encoding)
    if raw:
        return embedding_response(
            request,
            result,
            [rows.tobytes()],
            serialized_since=since,
            media_type=RAW,
            headers=headers | {"x-embedding-shape": f"{rows.shape[0]},{rows.shape[1]}"},
        )
    items = with_nulls(as_json_items(rows, body.encoding), errors)
    content = await list_as_json(request, items)
    if body.details:
        details = details_as_json(request, result, errors)
        content = [b'{"embeddings":', *content, b',"details":%b}' % details]
    return embedding_response(request, result, content, serialized_since=since, headers=headers)


def _check_raw(body: EmbedBody) -> None:
    """Raise InvalidInput for options of which raw numbers can tell nothing."""
    for name, given in (("details", body.details), ("on_error", body.on_error == "null")):
        if given:
            value = "true" if name == "details" else body.on_error
            raise InvalidInput(
                f"{name} is {value} and Accept is {RAW}, which has no room for it."
                f" Ask for application/json, or leave {name} out.",
                param=name,
            )


@router.post(
    "/similarity",
    summary="Compare texts",
    openapi_extra=request_body(
        SimilarityBody,
        {
            "inputs": {
                "source_sentence": "A man is playing a guitar.",
                "sentences": ["Someone plays music.", "The stock market fell."],
            }
        },
        embeds=True,
    ),
    responses={
        200: success(
            list[float] | list[list[RankedDocument]],
            "A cosine per sentence or pair, or per query its documents, best first.",
            embeddings=True,
        )
    },
)
async def compare_texts(request: Request) -> Response:
    """Cosines of the full embeddings, in [-1, 1]. A text that comes twice at a depth runs once."""
    body = await read_body(request, SimilarityBody)
    return await _similarities(request, body)


async def _similarities(request: Request, body: SimilarityBody) -> Response:
    sides = body.inputs.sides()
    result, sources, others = await _embed_sides(request, body, *sides)
    context_of(request).characters = sum(map(len, body.inputs.texts()))  # doubles too
    since = time.perf_counter()
    unit = to_unit(result.embeddings)
    if isinstance(body.inputs, RankingForm):
        ranking = _ranking(unit, sources, np.array(others), body.inputs.top_k)
        scores = await array_of(request, ranking)
    else:
        scores = await list_as_json(request, paired_cosines(unit, sources, others))
    return embedding_response(request, result, scores, serialized_since=since)


async def _embed_sides(
    request: Request, body: SimilarityBody, sources: Sequence[str], others: Sequence[str]
) -> tuple[EmbedResult, list[int], list[int]]:
    """The embeddings of both sides, and the row of every text of each side.

    Each side has its depth and its prompt; those of a ranking are queries and documents.
    """
    service, options = service_of(request), body.parameters
    ranks = isinstance(body.inputs, RankingForm) and options.documents_prompt_name is None
    depth = service.depth(options.depth)
    prompt = prompt_of(service.manifest, options, role="query" if ranks else None)
    others_depth = service.documents_depth(options.documents_depth, beside=depth)
    others_prompt = prompt
    if (name := options.documents_prompt_name) is not None:
        others_prompt = named_prompt(service.manifest, name, param="documents_prompt_name")
    elif ranks:
        others_prompt = prompt_of(service.manifest, options, role="document")
    row_of = {text: row for row, text in enumerate(dict.fromkeys(body.inputs.texts()))}
    if (others_depth, others_prompt) == (depth, prompt):
        result = await embed(request, [*row_of], options, prompt=prompt)
        return result, [row_of[text] for text in sources], [row_of[text] for text in others]
    row_of = {text: row for row, text in enumerate(dict.fromkeys(sources))}
    row_of_other = {text: row for row, text in enumerate(dict.fromkeys(others), len(row_of))}
    other_texts = OtherTexts([*row_of_other], others_depth, others_prompt)
    result = await embed(request, [*row_of], options, prompt=prompt, others=other_texts)
    return result, [row_of[text] for text in sources], [row_of_other[text] for text in others]


def _ranking(
    unit: UnitEmbeddings, queries: Sequence[int], documents: NDArray[np.intp], top_k: int | None
) -> Iterator[bytes]:
    for query in queries:
        best, scores = ranked_cosines(unit, query, documents, top_k)
        ranked = [
            {"index": index, "score": score}
            for index, score in zip(best.tolist(), scores, strict=True)
        ]
        yield orjson.dumps(ranked, option=orjson.OPT_SERIALIZE_NUMPY)
