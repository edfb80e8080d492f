"""The texts of a request on their way through the queue: parts of one depth, and their results."""

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from s2sent.service.engine.inference.fair_queue import PendingRequest
from s2sent.service.engine.tokenization import Tokenized
from s2sent.service.engine.types import EmbedRequest, EmbedResult
from s2sent.service.engine.windows import embeddings_of_texts, errors_of_texts, sequences_of


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
