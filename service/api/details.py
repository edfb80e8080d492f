"""What an answer tells of single texts: their errors, null for these, and their details."""

from collections.abc import Mapping, Sequence

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from starlette.requests import Request

from s2sent.service.api.embedding import service_of
from s2sent.service.api.vectors import (
    Embeddings,
    have_direction,
    lengths_of,
    no_direction,
    truncate_and_normalize,
)
from s2sent.service.engine.types import EmbedResult
from s2sent.service.errors import ServiceError
from s2sent.service.http.context import context_of

Errors = Mapping[int, ServiceError]  # of single texts, by position


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
    id_ = service_of(request).engine.model.tokenizer.unknown_id
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


def usable_embeddings(
    result: EmbedResult, *, dimensions: int | None, normalize: bool, skip_failed: bool
) -> tuple[Embeddings, Errors]:
    """The embeddings of the texts without an error, cut and normalised, and the errors.

    Raises InferenceFailed for an embedding without direction, unless ``skip_failed``, where it is
    among the errors.
    """
    embeddings, errors = result.embeddings, dict(result.errors)
    if skip_failed:
        rows = np.array([row for row in range(len(embeddings)) if row not in errors], np.intp)
        lengths = lengths_of(embeddings[rows, :dimensions])
        usable = have_direction(lengths)
        for row, length in zip(rows[~usable].tolist(), lengths[~usable], strict=True):
            errors[row] = no_direction(row, length)
        embeddings = embeddings[rows[usable]]
    cut = truncate_and_normalize(embeddings, dimensions=dimensions, normalize=normalize)
    return cut, errors


def with_nulls(
    rows: Sequence[object] | NDArray[np.generic], errors: Errors
) -> Sequence[object] | NDArray[np.generic]:
    """``rows`` with None at the position of each error."""
    if not errors:
        return rows
    rest = iter(rows)
    return [None if at in errors else next(rest) for at in range(len(rows) + len(errors))]
