"""/tokenize and /decode, as text-embeddings-inference has them."""

from collections.abc import Callable, Sequence
from functools import partial

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from service import errors
from service.api.embedding import service_of
from service.api.openapi import EMBEDDING_ERRORS, failures, request_body, success
from service.api.responses import JSON
from service.api.routing import RequestRoute
from service.api.schemas import DecodeBody, TokenizeBody
from service.engine.tokenization import Item, TokenWork
from service.engine.vocabulary import Vocabulary
from service.http.body import unless_disconnected
from service.http.context import context_of

TOKENIZING_ERRORS = tuple(kind for kind in EMBEDDING_ERRORS if kind is not errors.InferenceFailed)

router = APIRouter(
    tags=["native"], responses=failures(*TOKENIZING_ERRORS), route_class=RequestRoute
)


class Token(BaseModel):
    """A token of a text. Special tokens have no place in it."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


@router.post(
    "/tokenize",
    summary="Take texts apart",
    openapi_extra=request_body(TokenizeBody),
    responses={200: success(list[list[Token]], "The tokens of each text.")},
)
async def tokenize_texts(request: Request) -> Response:
    """The tokens of each text, which is not cut; places are bytes of UTF-8, the prompt included."""
    body = await service_of(request).bodies.read(request, TokenizeBody)
    prompt = service_of(request).prompt(body.prompt_name)
    split = partial(Vocabulary.pieces, add_special_tokens=body.add_special_tokens)
    return await _each(request, [prompt + text for text in body.inputs], split)


@router.post(
    "/decode",
    summary="Put token ids together",
    openapi_extra=request_body(DecodeBody),
    responses={200: success(list[str], "The text of each list of ids.")},
)
async def decode_ids(request: Request) -> Response:
    """The text of each list of token ids, which is not quite the text they came from."""
    body = await service_of(request).bodies.read(request, DecodeBody)
    join = partial(Vocabulary.text, skip_special_tokens=body.skip_special_tokens)
    return await _each(request, body.ids, join)


async def _each(
    request: Request, items: Sequence[Item], function: Callable[[Vocabulary, Item], object]
) -> Response:
    """The answer of ``function`` for each item, for as long as the client waits."""
    work: TokenWork = request.app.state.token_work
    left = service_of(request).settings.request_timeout_seconds
    left -= context_of(request).elapsed_seconds()
    running = work.each(items, function, timeout_seconds=left)
    return Response(await unless_disconnected(request, running), media_type=JSON)
