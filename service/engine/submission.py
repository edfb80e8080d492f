"""Tokenised requests on their way to the queue, and their results."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from s2sent.service.engine.admission import Admission, TextQueue
from s2sent.service.engine.inference.fair_queue import PendingRequest
from s2sent.service.engine.tokenization import Tokenized
from s2sent.service.engine.types import EmbedResult
from s2sent.service.engine.windows import embeddings_of_texts, errors_of_texts, sequences_of
from s2sent.service.lanes import Lane
from s2sent.service.telemetry.metrics import Metrics


class Part(NamedTuple):
    """The texts of a request that run to one depth: as tokens, and in the queue."""

    tokenized: Tokenized
    pending: PendingRequest


class Submission:
    """Queues the texts of requests. Used on the event loop only."""

    def __init__(self, admission: Admission, queue: TextQueue, metrics: Metrics) -> None:
        self._admission = admission
        self._queue = queue
        self._metrics = metrics

    def submit(
        self,
        texts: Sequence[tuple[Tokenized, int | None]],
        row_length: Callable[[int | None], int],
        *,
        lane: Lane,
        weights: bool = False,
        now: float,
    ) -> list[Part]:
        """Queue all texts of a request or none; the future of a part is set once it is embedded.

        ``texts`` are tokens with the last block to run for them; ``row_length`` gives the numbers
        of a row at that depth. ``weights`` as in `PendingRequest`. Texts that have an error already
        are not queued.
        Raises PayloadTooLarge for too many windows, and Overloaded when its tokens do not fit into
        the queue.
        """
        self._admission.check_windows([row for tokenized, _ in texts for row in tokenized.rows])
        parts = []
        for tokenized, depth in texts:
            sequences, errors = sequences_of(tokenized.rows), tokenized.errors
            pending = PendingRequest(
                sequences,
                row_length(depth),
                asyncio.get_running_loop().create_future(),
                positions=[at for at in range(len(sequences)) if at not in (errors or ())],
                lane=lane,
                depth=depth,
                weights=weights,
                arrival=now,
                errors=errors,
            )
            parts.append(Part(tokenized, pending))
        self._admission.submit([part.pending for part in parts])
        return parts

    def stage_of(self, parts: Sequence[Part]) -> str:
        """How far a request is that ends now; without parts, its texts are being tokenised."""
        if not parts:
            return "tokenize"
        started = any(self._queue.has_started(part.pending) for part in parts)
        return "inference" if started else "queue"

    def drop(self, parts: Sequence[Part]) -> None:
        """Remove the texts of the parts that wait: nobody waits for their futures any more."""
        for _, pending in parts:
            self._queue.drop(pending)
            if not pending.future.cancel() and not pending.future.cancelled():
                pending.future.exception()  # read, also where another part failed first

    def finish(self, parts: Sequence[Part], *, counted: bool = False) -> EmbedResult:
        """The result of the parts; ``counted`` tells the windows of each text."""
        return _joined([self._finish(part, counted=counted) for part in parts])

    def _finish(self, part: Part, *, counted: bool) -> EmbedResult:
        tokenized, request = part
        rows, errors = tokenized.rows, request.errors or {}
        failed = errors_of_texts(errors, rows)
        result = EmbedResult(
            embeddings_of_texts(request.embeddings, rows),
            [len(row) if at not in failed else 0 for at, row in enumerate(rows)],
            [row.truncated and at not in failed for at, row in enumerate(rows)],
            tokenized.seconds,
            request.queue_seconds / len(request.sequences),
            request.inference_seconds / len(request.sequences),
            failed,
            [[*row.input_ids, *chain(*row.more)] for row in rows] if counted else request.sequences,
            [1 + len(row.more) for row in rows] if counted else None,
        )
        self._metrics.deferred.add(self._observe, result, request.lane)
        return result

    def _observe(self, result: EmbedResult, lane: Lane) -> None:
        self._metrics.tokenize_duration.observe(result.tokenize_seconds)
        self._metrics.queue_duration[lane].observe(result.queue_seconds)
        self._metrics.inference_duration.observe(result.inference_seconds)
        if any(result.truncated):
            self._metrics.truncated_texts.inc(sum(result.truncated))


def _joined(results: Sequence[EmbedResult]) -> EmbedResult:
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
