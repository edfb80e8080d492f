"""The routes /embed and /similarity, compatible with text-embeddings-inference."""

import asyncio
import time

import numpy as np
from fastapi import APIRouter, Request, Response

from service.api.details import DetailedEmbeddings, details_as_json
from service.api.embedding import embed, service_of
from service.api.encodings import as_json_items, check_scale, encode, encoding_headers
from service.api.openapi import EMBEDDING_ERRORS, failures, request_body, success
from service.api.partial import usable_embeddings, with_nulls
from service.api.responses import RAW, embedding_response, list_as_json
from service.api.routing import RequestRoute
from service.api.schemas import (
    EmbedBody,
    PairsForm,
    RankedDocument,
    RankingForm,
    SimilarityBody,
    SourceForm,
)
from service.api.vectors import (
    UnitEmbeddings,
    paired_cosines,
    ranked_cosines,
    to_unit,
)
from service.errors import InvalidInput

router = APIRouter(tags=["native"], responses=failures(*EMBEDDING_ERRORS), route_class=RequestRoute)


@router.post("/", include_in_schema=False)
@router.post(
    "/embed",
    summary="Embed texts",
    openapi_extra=request_body(EmbedBody),
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
    service = service_of(request)
    body = await service.bodies.read(request, EmbedBody)
    service.check_dimensions(body.dimensions)
    raw = RAW in request.headers.get("accept", "")
    skip_failed = body.on_error == "null"
    check_scale(body.encoding, normalize=body.normalize)
    if raw:
        _check_raw(body)
    result = await embed(request, body.inputs, body, skip_failed=skip_failed)
    since = time.perf_counter()
    embeddings, errors = usable_embeddings(
        result, dimensions=body.dimensions, normalize=body.normalize, skip_failed=skip_failed
    )
    headers = encoding_headers(body.encoding, embeddings.shape[1])
    rows = encode(embeddings, body.encoding)
    if raw:
        return embedding_response(
            request,
            result,
            rows.tobytes(),
            serialized_since=since,
            media_type=RAW,
            headers=headers | {"x-embedding-shape": f"{rows.shape[0]},{rows.shape[1]}"},
        )
    content = await list_as_json(with_nulls(as_json_items(rows, body.encoding), errors))
    if body.details:
        details = details_as_json(request, result, errors)
        content = b'{"embeddings":%b,"details":%b}' % (content, details)
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
    openapi_extra=request_body(SimilarityBody),
    responses={
        200: success(
            list[float] | list[list[RankedDocument]],
            "A cosine per sentence or pair, or per query its documents, best first.",
            embeddings=True,
        )
    },
)
async def compare_texts(request: Request) -> Response:
    """Cosines of the full embeddings, in [-1, 1]. A repeated text is embedded once."""
    body = await service_of(request).bodies.read(request, SimilarityBody)
    form = body.inputs
    distinct = list(dict.fromkeys(form.texts()))
    result = await embed(request, distinct, body.parameters)
    since = time.perf_counter()
    unit = to_unit(result.embeddings)
    row_of = {text: row for row, text in enumerate(distinct)}
    scores = await _scores(form, unit, row_of)
    return embedding_response(request, result, scores, serialized_since=since)


async def _scores(
    form: SourceForm | PairsForm | RankingForm, unit: UnitEmbeddings, row_of: dict[str, int]
) -> bytes:
    match form:
        case SourceForm():
            others = [row_of[text] for text in form.sentences]
            source = [row_of[form.source_sentence]] * len(others)
            return await list_as_json(paired_cosines(unit, source, others))
        case PairsForm():
            left, right = zip(*form.pairs, strict=True)
            rows = [row_of[text] for text in left], [row_of[text] for text in right]
            return await list_as_json(paired_cosines(unit, *rows))
        case RankingForm():
            return await _ranking(form, unit, row_of)


async def _ranking(form: RankingForm, unit: UnitEmbeddings, row_of: dict[str, int]) -> bytes:
    documents = np.array([row_of[text] for text in form.documents])
    answers = []
    for query in form.queries:
        await asyncio.sleep(0)  # let the event loop serve others
        best, scores = ranked_cosines(unit, row_of[query], documents, form.top_k)
        ranked = [
            {"index": index, "score": score}
            for index, score in zip(best.tolist(), scores, strict=True)
        ]
        answers.append(await list_as_json(ranked))
    return b"[" + b",".join(answers) + b"]"
