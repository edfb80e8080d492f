"""Texts that are several sequences: windows of a text that is longer than the model reads.

The embedding of such a text is the mean of its windows' embeddings, each counted with its tokens.
For a model that averages its token states this is the mean over the tokens of all windows.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from s2sent.model.runtime.tokenizer import TokenizedText
from s2sent.service.errors import ServiceError, failed_text


def sequences_of(rows: Sequence[TokenizedText]) -> list[list[int]]:
    """The sequences to embed: the first window of each text, then all the others, in order."""
    return [row.input_ids for row in rows] + [ids for row in rows for ids in row.more]


def embeddings_of_texts(
    embeddings: NDArray[np.float32], rows: Sequence[TokenizedText]
) -> NDArray[np.float32]:
    """One embedding per text [n, dim] of those of the sequences, in the order of `sequences_of`."""
    if len(embeddings) == len(rows):
        return embeddings
    owners = _owners(rows)
    lengths = np.array([len(ids) for ids in sequences_of(rows)], dtype=np.float64)
    totals = np.zeros((len(rows), embeddings.shape[1]))
    np.add.at(totals, owners, lengths[:, None] * embeddings)
    tokens = np.bincount(owners, weights=lengths, minlength=len(rows))
    # A text with an error has no tokens, and its row has no meaning.
    return (totals / np.maximum(tokens, 1)[:, None]).astype(np.float32)


def errors_of_texts(
    errors: Mapping[int, ServiceError], rows: Sequence[TokenizedText]
) -> Mapping[int, ServiceError]:
    """The errors by text; that of a window after the first is its text's."""
    if not errors:
        return errors
    owners = _owners(rows)
    return {
        int(owners[position]): error if position < len(rows) else failed_text(int(owners[position]))
        for position, error in errors.items()
    }


def _owners(rows: Sequence[TokenizedText]) -> NDArray[np.intp]:
    """The text of each sequence."""
    more = np.repeat(np.arange(len(rows)), [len(row.more) for row in rows])
    return np.concatenate((np.arange(len(rows)), more))
