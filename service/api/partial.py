"""Answers in which a text that cannot be embedded is null (``on_error`` null)."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from s2sent.service.api.vectors import (
    Embeddings,
    have_direction,
    lengths_of,
    no_direction,
    truncate_and_normalize,
)
from s2sent.service.engine.types import EmbedResult
from s2sent.service.errors import ServiceError

Errors = Mapping[int, ServiceError]  # of single texts, by position


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
