"""The texts of a request on their way through the queue: parts of one depth, and their results.

A text that is longer than the model reads may be several sequences, its windows. Its embedding is
the mean of theirs, each counted with its tokens. For a model that averages its token states this is
the mean over the tokens of all windows.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from s2sent.model.runtime.tokenizer import TokenizedText
from s2sent.service.engine.inference.fair_queue import PendingRequest
from s2sent.service.engine.tokenization import Tokenized
from s2sent.service.engine.types import EmbedRequest, EmbedResult
from s2sent.service.errors import ServiceError, failed_text


class Part(NamedTuple):
    """The texts of a request that run to one depth: as tokens, and in the queue."""

    tokenized: Tokenized
    pending: PendingRequest


def part_of(
    tokenized: Tokenized, request: EmbedRequest, depth: int | None, row_length: int, now: float
) -> Part:
    """A part to be queued, whose rows have so many numbers; texts with an error are left out."""
    sequences, errors = sequences_of(tokenized.rows), tokenized.errors
    pending = PendingRequest(
        sequences,
        row_length,
        asyncio.get_running_loop().create_future(),
        positions=[at for at in range(len(sequences)) if at not in (errors or ())],
        lane=request.lane,
        depth=depth,
        weights=request.weights,
        arrival=now,
        errors=errors,
    )
    return Part(tokenized, pending)


def result_of(part: Part, *, counted: bool) -> EmbedResult:
    """The result of a part that is embedded; ``counted`` tells the windows of each text."""
    rows, request = part.tokenized.rows, part.pending
    failed = errors_of_texts(request.errors or {}, rows)
    return EmbedResult(
        embeddings_of_texts(request.embeddings, rows),
        [len(row) if at not in failed else 0 for at, row in enumerate(rows)],
        [row.truncated and at not in failed for at, row in enumerate(rows)],
        part.tokenized.seconds,
        request.queue_seconds / len(request.sequences),
        request.inference_seconds / len(request.sequences),
        failed,
        [[*row.input_ids, *chain(*row.more)] for row in rows] if counted else request.sequences,
        [1 + len(row.more) for row in rows] if counted else None,
    )


def joined(results: Sequence[EmbedResult]) -> EmbedResult:
    """One result, or two without errors as one: the texts of the first, then of the second.

    Tokenising is the sum of both, waiting and running are means over all texts.
    """
    first, *rest = results
    if not rest:
        return first
    (second,) = rest
    count = len(first.tokens), len(second.tokens)

    def mean(one: float, other: float) -> float:
        return (count[0] * one + count[1] * other) / sum(count)

    return EmbedResult(
        np.concatenate([first.embeddings, second.embeddings]),
        first.tokens + second.tokens,
        first.truncated + second.truncated,
        first.tokenize_seconds + second.tokenize_seconds,
        mean(first.queue_seconds, second.queue_seconds),
        mean(first.inference_seconds, second.inference_seconds),
        token_ids=[*first.token_ids, *second.token_ids],
        windows=[*(first.windows or ()), *(second.windows or ())] or None,
    )


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
