"""Scores retrieval: each query's own document among the documents of all queries, by cosine."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from s2sent.training.corpus import read_table
from s2sent.training.errors import DataError
from s2sent.training.evaluation.sts import Encode, require_directions, roles

COLUMNS = ("query", "document")
PACKAGES = Path("retrieval", "packages-dev.tsv")  # in the data; left out where it is not there
RECALL, RECIPROCAL_RANK = "R@1", "MRR@10"
CUT = 10  # a document ranked lower counts as not found in the mean reciprocal rank


def read_retrieval(path: Path) -> tuple[list[str], list[str]]:
    """The queries and their documents, row by row; raises `DataError` for an unusable file."""
    rows = list(read_table(path, COLUMNS))
    if not rows:
        raise DataError(f"{path} has no rows under its header: add a query and its document.")
    return [row[0] for row in rows], [row[1] for row in rows]


def score_retrieval(encode: Encode, path: Path) -> dict[str, float]:
    """Recall@1 and MRR@10, both x 100, of a file's queries among all of its documents.

    Each side is read as the encoder reads queries and documents.
    """
    queries, documents = read_retrieval(path)
    as_query, as_document = roles(encode)
    return retrieval_scores(as_query(queries), as_document(documents))


def retrieval_scores(
    queries: NDArray[np.floating], documents: NDArray[np.floating]
) -> dict[str, float]:
    """The scores of embeddings [n, dim] whose row i of ``documents`` answers row i of ``queries``.

    A document's rank is one more than the number of documents with a higher cosine. Documents with
    equal embeddings share a rank, although a product may round equal columns differently. Raises
    `EncoderError` for embeddings without a cosine.
    """
    require_directions(queries, documents)
    cosine = (_unit(queries) @ _unit(documents).T)[:, _first_equal(documents)]
    ranks = 1 + (cosine > np.diagonal(cosine)[:, None]).sum(1)
    return {
        RECALL: 100 * float((ranks == 1).mean()),
        RECIPROCAL_RANK: 100 * float(np.where(ranks <= CUT, 1 / ranks, 0).mean()),
    }


def _first_equal(rows: NDArray[np.floating]) -> NDArray[np.int64]:
    """For each of the rows [n, dim] the first one that is equal to it."""
    _, first, of_row = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    found: NDArray[np.int64] = first[of_row.reshape(-1)]
    return found


def _unit(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    unit: NDArray[np.floating] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit
