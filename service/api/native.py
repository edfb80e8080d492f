"""/embed and /similarity, as text-embeddings-inference has them, and what they add."""

import asyncio
import time

import numpy as np
from fastapi import APIRouter, Request, Response

from service.api.openapi import EMBEDDING_ERRORS, failures, request_body, success
from service.api.responses import RAW, answer, embed, list_as_json, little_endian_bytes
from service.api.routing import DirectRoute
from service.api.schemas import (
    EmbedRequest,
    PairsForm,
    RankedDocument,
    RankingForm,
    SimilarityRequest,
    SourceForm,
)
from service.api.vectors import UnitRows, finish, paired_cosines, ranked_cosines, unit_rows
from service.http.body import read_body
from service.http.context import service_of

router = APIRouter(tags=["native"], responses=failures(*EMBEDDING_ERRORS), route_class=DirectRoute)


@router.post("/", include_in_schema=False)
@router.post(
    "/embed",
    summary="Embed texts",
    openapi_extra=request_body(EmbedRequest),
    responses={200: success(list[list[float]], "One embedding per text.", cost=True, raw=True)},
)
async def embed_texts(request: Request) -> Response:
    """One embedding per text, in order; raw float32 where ``Accept`` asks for octets."""
    body = await read_body(request, EmbedRequest)
    service_of(request).check_dimensions(body.dimensions)
    result = await embed(request, body.inputs, body)
    since = time.perf_counter()
    rows = finish(result.embeddings, dimensions=body.dimensions, normalize=body.normalize)
    if RAW in request.headers.get("accept", ""):
        shape = {"x-embedding-shape": f"{rows.shape[0]},{rows.shape[1]}"}
        raw = little_endian_bytes(rows)
        return answer(request, result, raw, serialized_since=since, media_type=RAW, headers=shape)
    return answer(request, result, await list_as_json(rows), serialized_since=since)


@router.post(
    "/similarity",
    summary="Compare texts",
    openapi_extra=request_body(SimilarityRequest),
    responses={
        200: success(
            list[float] | list[list[RankedDocument]],
            "A cosine per sentence or pair, or per query its documents, best first.",
            cost=True,
        )
    },
)
async def compare_texts(request: Request) -> Response:
    """Cosines of the full embeddings, in [-1, 1]. A text that comes twice is embedded once."""
    body = await read_body(request, SimilarityRequest)
    form = body.inputs
    distinct = list(dict.fromkeys(form.texts()))
    result = await embed(request, distinct, body.parameters)
    since = time.perf_counter()
    unit = unit_rows(result.embeddings)
    row_of = {text: row for row, text in enumerate(distinct)}
    scores = await _scores(form, unit, row_of)
    return answer(request, result, scores, serialized_since=since)


async def _scores(
    form: SourceForm | PairsForm | RankingForm, unit: UnitRows, row_of: dict[str, int]
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


async def _ranking(form: RankingForm, unit: UnitRows, row_of: dict[str, int]) -> bytes:
    documents = np.array([row_of[text] for text in form.documents])
    answers = []
    for query in form.queries:
        await asyncio.sleep(0)  # a turn of the event loop for others
        best, scores = ranked_cosines(unit, row_of[query], documents, form.top_k)
        ranked = [
            {"index": index, "score": score}
            for index, score in zip(best.tolist(), scores, strict=True)
        ]
        answers.append(await list_as_json(ranked))
    return b"[" + b",".join(answers) + b"]"
