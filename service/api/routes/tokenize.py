"""The routes /tokenize and /decode, compatible with text-embeddings-inference."""

import orjson
from fastapi import APIRouter, Request, Response

from s2sent.model.runtime.token_spans import TokenSpan
from s2sent.service import errors
from s2sent.service.api.embedding import read_body, remaining_seconds, service_of
from s2sent.service.api.openapi import EMBEDDING_ERRORS, failures, request_body, success
from s2sent.service.api.pieces import answer_of
from s2sent.service.api.prompts import named_prompt
from s2sent.service.api.responses import JSON, array_of, list_as_json
from s2sent.service.api.routing import RequestRoute
from s2sent.service.api.schemas.bodies import DecodeBody, TokenizeBody
from s2sent.service.http.body import unless_disconnected

TOKENIZING_ERRORS = tuple(kind for kind in EMBEDDING_ERRORS if kind is not errors.InferenceFailed)

router = APIRouter(
    tags=["native"], responses=failures(*TOKENIZING_ERRORS), route_class=RequestRoute
)


@router.post(
    "/tokenize",
    summary="Split texts into tokens",
    openapi_extra=request_body(TokenizeBody, {"inputs": "A man is playing a guitar."}),
    responses={200: success(list[list[TokenSpan]], "The tokens of each text.")},
)
async def tokenize_texts(request: Request) -> Response:
    """The tokens of each text, not truncated; places are bytes of UTF-8, the prompt included."""
    service = service_of(request)
    body = await read_body(request, TokenizeBody, queued=False)
    work = service.engine.tokenize(
        body.inputs,
        orjson.dumps,
        add_special_tokens=body.add_special_tokens,
        prompt=named_prompt(service.manifest, body.prompt_name),
        timeout_seconds=remaining_seconds(request),
    )
    tokens = await unless_disconnected(request, work)
    return answer_of(request, await array_of(request, tokens), media_type=JSON)


@router.post(
    "/decode",
    summary="Turn token ids into text",
    openapi_extra=request_body(DecodeBody, {"ids": [[5, 6, 7]]}),
    responses={200: success(list[str], "The text of each list of ids.")},
)
async def decode_ids(request: Request) -> Response:
    """The text of each list of token ids, which is not quite the text they came from."""
    service = service_of(request)
    body = await read_body(request, DecodeBody, queued=False)
    work = service.engine.decode(
        body.ids,
        skip_special_tokens=body.skip_special_tokens,
        timeout_seconds=remaining_seconds(request),
    )
    texts = await unless_disconnected(request, work)
    return answer_of(request, await list_as_json(request, texts), media_type=JSON)
