"""Tokenised requests on their way to the batcher, past the cache, and their results."""

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from service.engine.admission import Admission
from service.engine.cache import EmbeddingCache
from service.engine.inference.fair_queue import PendingRequest
from service.engine.tokenization import Tokenized
from service.engine.types import EmbedResult
from service.engine.windows import embeddings_of_texts, errors_of_texts, sequences_of
from service.lanes import Lane
from service.telemetry.metrics import Metrics


class Part(NamedTuple):
    """Texts of a request that run to one depth, None for full depth, and the length of a row."""

    tokenized: Tokenized
    depth: int | None
    dim: int


class Submission:
    """Queues the texts whose embeddings are not in the cache. Used on the event loop only.

    ``cache_bytes`` 0 means no cache.
    """

    def __init__(self, admission: Admission, metrics: Metrics, *, cache_bytes: int) -> None:
        self._admission = admission
        self._metrics = metrics
        self._cache = EmbeddingCache(cache_bytes) if cache_bytes else None

    @property
    def cache_bytes(self) -> int:
        """Bytes that the cache takes now."""
        return 0 if self._cache is None else self._cache.bytes

    def submit(
        self, parts: Sequence[Part], *, lane: Lane, weights: bool = False, now: float
    ) -> list[PendingRequest]:
        """Queue all parts of a request or none; the future of each is set once it is embedded.

        ``weights`` as in `PendingRequest`; they are not kept in the cache. Texts that have an error
        already are not queued.
        Raises PayloadTooLarge for too many windows, and Overloaded when its tokens do not fit into
        the queue.
        """
        cache = None if weights else self._cache
        requests, found = [], 0
        for tokenized, depth, dim in parts:
            sequences, errors = sequences_of(tokenized.rows), tokenized.errors
            known = {} if cache is None else cache.find(sequences, depth=depth)
            settled = {**known, **errors} if errors else known
            request = PendingRequest(
                sequences,
                dim,
                asyncio.get_running_loop().create_future(),
                positions=[at for at in range(len(sequences)) if at not in settled],
                lane=lane,
                depth=depth,
                weights=weights,
                arrival=now,
                errors=errors,
            )
            for position, embedding in known.items():
                request.embeddings[position] = embedding
            requests.append(request)
            found += len(known)
        self._admission.check_windows(
            sum(len(part.tokenized.rows) for part in parts),
            sum(len(request.sequences) for request in requests),
        )
        self._admission.submit([request for request in requests if request.positions])
        for request in requests:
            if not request.positions:
                request.future.set_result(None)
        if cache is not None:
            self._metrics.cache_hits.inc(found)
            self._metrics.cache_misses.inc(sum(len(request.positions) for request in requests))
        return requests

    def finish(
        self,
        request: PendingRequest,
        tokenized: Tokenized,
        *,
        counted: bool = False,
    ) -> EmbedResult:
        """Keep the new embeddings in the cache and return the result, which is recorded.

        ``counted`` tells the windows of each text.
        """
        rows, errors = tokenized.rows, request.errors or {}
        if self._cache is not None and not request.weights:
            embeddings = {
                position: request.embeddings[position]
                for position in request.positions
                if position not in errors
            }
            self._cache.keep(request.sequences, embeddings, depth=request.depth)
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
