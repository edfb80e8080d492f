"""What happens to embeddings after the encoder: cutting, normalising, comparing.

The encoder gives pooled embeddings [n, dim] float32 that are not normalised. Norms and cosines
are taken in float64, so that rounding stays below what float32 can show.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.errors import InferenceFailed

Rows = NDArray[np.float32]  # [n, dim]
UnitRows = NDArray[np.float64]  # [n, dim], every row of length 1


def finish(embeddings: Rows, *, dimensions: int | None, normalize: bool) -> Rows:
    """Cut to the first ``dimensions`` components, then divide each row by its L2 norm.

    Raises InferenceFailed for a row that has no direction: zero, infinite or not a number.
    """
    rows = embeddings[:, :dimensions]
    norms = _norms(rows)
    finished = rows / norms[:, None] if normalize else rows
    return np.ascontiguousarray(finished, dtype=np.float32)


def unit_rows(embeddings: Rows) -> UnitRows:
    """The rows divided by their L2 norms, in float64; raises InferenceFailed as `finish` does."""
    return embeddings / _norms(embeddings)[:, None]


def paired_cosines(unit: UnitRows, left: Sequence[int], right: Sequence[int]) -> Rows:
    """The cosine of row ``left[i]`` with row ``right[i]`` for every i, [n] float32."""
    return _rounded(np.vecdot(unit[left], unit[right]))


def ranked_cosines(
    unit: UnitRows, query: int, documents: NDArray[np.intp], top_k: int | None
) -> tuple[NDArray[np.intp], Rows]:
    """The ``top_k`` documents closest to a query, best first, equal scores by position.

    Returns their positions in ``documents`` and their cosines. Every distinct row is compared
    once, so documents that are equal have scores that are equal to the last bit.
    """
    scores = _rounded(unit @ unit[query])[documents]
    best = np.argsort(-scores, kind="stable")[:top_k]
    return best, scores[best]


def _norms(rows: Rows) -> NDArray[np.float64]:
    exact = rows.astype(np.float64)  # the squares of float32 cannot overflow here
    norms: NDArray[np.float64] = np.sqrt(np.vecdot(exact, exact))
    usable = (norms > 0) & (norms < np.inf)  # NaN is neither
    if np.count_nonzero(usable) < len(norms):
        index = int(usable.argmin())
        raise InferenceFailed(
            f"The embedding of input {index} has the length {norms[index]} and cannot be used. "
            "Send the other inputs without it."
        )
    return norms


def _rounded(cosines: NDArray[np.float64]) -> Rows:
    """Float32 cosines; rounding may leave [-1, 1] by an ulp, which no cosine may."""
    return np.clip(cosines, -1.0, 1.0).astype(np.float32)
