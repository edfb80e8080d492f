"""Truncates, normalises and compares embeddings.

The engine returns pooled embeddings [n, dim] float32 that are not normalised. Norms and cosines
are computed in float64, so that their rounding errors are below float32's precision: a cosine
rounded to float32 is never outside [-1, 1].
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from s2sent.service.errors import InferenceFailed

Embeddings = NDArray[np.float32]  # [n, dim]
UnitEmbeddings = NDArray[np.float64]  # [n, dim], every row of L2 norm 1
Scores = NDArray[np.float32]  # [n]


def truncate_and_normalize(
    embeddings: Embeddings, *, dimensions: int | None, normalize: bool
) -> Embeddings:
    """Keep the first ``dimensions`` components, then divide each row by its L2 norm.

    Returns a C-contiguous array [n, dimensions]. Raises InferenceFailed for a row whose norm is
    zero, infinite or not a number, also if it is not to be normalised.
    """
    truncated = embeddings[:, :dimensions]
    norms = _norms(truncated)
    if normalize:
        truncated = (truncated / norms[:, None]).astype(np.float32)
    return np.ascontiguousarray(truncated)


def to_unit(embeddings: Embeddings) -> UnitEmbeddings:
    """The rows divided by their L2 norms, in float64.

    Raises InferenceFailed as `truncate_and_normalize` does.
    """
    return embeddings / _norms(embeddings)[:, None]


def paired_cosines(unit: UnitEmbeddings, left: Sequence[int], right: Sequence[int]) -> Scores:
    """The cosine of row ``left[i]`` with row ``right[i]`` for every i, [n] float32."""
    cosines: Scores = np.vecdot(unit[left], unit[right]).astype(np.float32)
    return cosines


def ranked_cosines(
    unit: UnitEmbeddings, query: int, documents: NDArray[np.intp], top_k: int | None
) -> tuple[NDArray[np.intp], Scores]:
    """The ``top_k`` documents with the highest cosine, best first, equal scores by position.

    ``query`` and ``documents`` are row indices. Returns positions in ``documents`` and cosines,
    both [top_k]. Every distinct row is compared once, so equal documents have identical scores.
    """
    scores = (unit @ unit[query]).astype(np.float32)[documents]
    best = np.argsort(-scores, kind="stable")[:top_k]
    return best, scores[best]


def lengths_of(embeddings: Embeddings) -> NDArray[np.float64]:
    """The L2 norm of each row, [n]."""
    exact = embeddings.astype(np.float64)  # the squares of float32 cannot overflow here
    norms: NDArray[np.float64] = np.sqrt(np.vecdot(exact, exact))
    return norms


def have_direction(lengths: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Of each length, whether its row can be normalised and compared."""
    return (lengths > 0) & (lengths < np.inf)  # NaN is neither


def no_direction(index: int, length: float) -> InferenceFailed:
    """The error of the input whose embedding has a length that `have_direction` denies."""
    return InferenceFailed(
        f"The embedding of input {index} has the length {length} and cannot be used. "
        "Send the other inputs without it."
    )


def _norms(embeddings: Embeddings) -> NDArray[np.float64]:
    norms = lengths_of(embeddings)
    usable = have_direction(norms)
    if np.count_nonzero(usable) < len(norms):
        index = int(usable.argmin())
        raise no_direction(index, norms[index])
    return norms
