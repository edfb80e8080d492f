"""What an answer tells of each text when ``details`` is true."""

import orjson
from pydantic import BaseModel, Field
from starlette.requests import Request

from s2sent.service.api.embedding import service_of
from s2sent.service.api.partial import Errors
from s2sent.service.engine.types import EmbedResult
from s2sent.service.http.context import context_of


class TextDetails(BaseModel):
    """What became of one text."""

    tokens: int = Field(description="Tokens embedded, special tokens included.")
    unknown: int = Field(description="Those of them that stand for what the vocabulary lacks.")
    truncated: bool = Field(description="Whether the text was cut because it is too long.")
    windows: int | None = Field(
        None, description="Windows it was split into; only with long_texts mean_of_windows."
    )
    error: str | None = Field(None, description="Why its embedding is null, in one sentence.")
    error_type: str | None = Field(None, description="The kind of error, e.g. Empty or Backend.")


class Details(BaseModel):
    """What an answer tells besides the embeddings."""

    model_fingerprint: str = Field(description="As the header x-model-fingerprint.")
    texts: list[TextDetails] = Field(description="One per text, in order.")


class DetailedEmbeddings(BaseModel):
    """Answer of /embed with ``details``."""

    embeddings: list[list[float] | str | None]
    details: Details


def details_as_json(request: Request, result: EmbedResult, errors: Errors) -> bytes:
    """A `Details` as JSON; only texts with an error have its fields."""
    id_ = service_of(request).engine.unknown_id
    unknown = () if id_ is None else (id_, ~id_)  # pooled or not
    rows = zip(result.tokens, result.token_ids, result.truncated, strict=True)
    texts: list[dict[str, object]] = [
        {
            "tokens": tokens,
            "unknown": tokens and sum(map([*ids].count, unknown)),
            "truncated": truncated,
        }
        for tokens, ids, truncated in rows
    ]
    for text, windows in zip(texts, result.windows or (), strict=False):
        text["windows"] = windows
    for position, error in errors.items():
        texts[position] |= {"error": error.message, "error_type": error.error_type}
    fingerprint = service_of(request).fingerprint(context_of(request).depth)
    return orjson.dumps({"model_fingerprint": fingerprint, "texts": texts})
