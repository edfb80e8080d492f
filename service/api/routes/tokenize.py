"""The routes /tokenize and /decode, compatible with text-embeddings-inference."""

from collections.abc import Callable, Sequence, Sized
from functools import partial

import orjson
from fastapi import APIRouter, Request, Response

from s2sent.model.runtime.token_spans import TokenSpan
from s2sent.service import errors
from s2sent.service.api.embedding import read_body, remaining_seconds, service_of
from s2sent.service.api.openapi import EMBEDDING_ERRORS, failures, request_body, success
from s2sent.service.api.pieces import answer_of, hold_answer
from s2sent.service.api.prompts import named_prompt
from s2sent.service.api.responses import JSON, array_of, list_as_json
from s2sent.service.api.schemas.bodies import DecodeBody, TokenizeBody
from s2sent.service.engine.admission import MAX_CHARACTERS
from s2sent.service.engine.types import Item, Result, TextTokenizer
from s2sent.service.errors import InvalidInput
from s2sent.service.http.body import unless_disconnected

TOKENIZING_ERRORS = tuple(kind for kind in EMBEDDING_ERRORS if kind is not errors.InferenceFailed)

# Bytes of an answer for each character, which may be a token, and for each id.
TOKEN_BYTES = 60
DECODED_BYTES = 10

router = APIRouter(tags=["native"], responses=failures(*TOKENIZING_ERRORS))


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
    _hold_answer_to(request, body.inputs, TOKEN_BYTES)
    prompt = named_prompt(service.manifest, body.prompt_name)
    texts = [prompt + text for text in body.inputs]

    def tokens_of(tokenizer: TextTokenizer, text: str) -> bytes:
        return orjson.dumps(tokenizer.token_spans(text, add_special_tokens=body.add_special_tokens))

    tokens = await _applied(request, tokens_of, texts)
    return answer_of(request, await array_of(request, tokens), media_type=JSON)


@router.post(
    "/decode",
    summary="Turn token ids into text",
    openapi_extra=request_body(DecodeBody, {"ids": [[5, 6, 7]]}),
    responses={200: success(list[str], "The text of each list of ids.")},
)
async def decode_ids(request: Request) -> Response:
    """The text of each list of token ids, which is not quite the text they came from."""
    body = await read_body(request, DecodeBody, queued=False)
    _hold_answer_to(request, body.ids, DECODED_BYTES)
    decode = partial(_decoded, skip_special_tokens=body.skip_special_tokens)
    texts = await _applied(request, decode, body.ids)
    return answer_of(request, await list_as_json(request, texts), media_type=JSON)


async def _applied(
    request: Request, function: Callable[[TextTokenizer, Item], Result], items: Sequence[Item]
) -> list[Result]:
    seconds = remaining_seconds(request)
    work = service_of(request).engine.apply_tokenizer(function, items, timeout_seconds=seconds)
    return await unless_disconnected(request, work)


def _decoded(tokenizer: TextTokenizer, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """The text of token ids. Raises InvalidInput for an id outside the vocabulary."""
    size = tokenizer.vocab_size
    if max(ids) >= size:
        raise InvalidInput(
            f"ids has {max(ids)}; this vocabulary has ids 0 to {size - 1}. Send ids that /tokenize"
            " answers with.",
            param="ids",
        )
    return tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


def _hold_answer_to(request: Request, items: Sequence[Sized], each: int) -> None:
    """Count the answer before the work is done, because it is whole before it is counted."""
    hold_answer(request, each * min(sum(map(len, items)), MAX_CHARACTERS))
