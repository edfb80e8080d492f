"""Work with the vocabulary for many requests: bounded, in slices, off the loop unless short."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import orjson

from model.artifact.manifest import TOKENIZER
from model.runtime.tokenizer import Tokenizer
from service.engine.engine import INLINE_CHARACTERS
from service.engine.types import EmbeddingEngine
from service.engine.vocabulary import Vocabulary
from service.errors import DeadlineExceeded, Overloaded, PayloadTooLarge
from service.metrics import Metrics
from service.settings import Settings

Item = TypeVar("Item", str, list[int])

# Of a request, all its texts or lists of ids together. A token is some 60 bytes of an answer, so
# one that is made of single characters stays below 20 MB.
MAX_CHARACTERS = 262_144
# The longest work between two looks at the deadline and the client: some 10 ms.
SLICE_CHARACTERS = 16_384


class TokenWork:
    """The vocabulary of the engine's artifact, lent to one slice of one request at a time.

    One at a time, because making the pieces holds Python's lock and the event loop needs it too.
    """

    def __init__(self, engine: EmbeddingEngine, settings: Settings, metrics: Metrics) -> None:
        self._engine = engine
        self._settings = settings
        self._metrics = metrics
        self._vocabulary: Vocabulary | None = None
        self._turn = asyncio.Lock()
        self._requests = 0

    async def each(
        self,
        items: Sequence[Item],
        work: Callable[[Vocabulary, Item], object],
        *,
        timeout_seconds: float,
    ) -> bytes:
        """What ``work`` makes of each item, in order, as a JSON array.

        Raises PayloadTooLarge, Overloaded, NotReady, DeadlineExceeded, and what ``work`` raises.
        Cancelling the coroutine ends it with the slice that is being worked on.
        """
        self._admit(sum(map(len, items)))
        self._requests += 1
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._in_slices(items, work)
        except TimeoutError:
            self._metrics.timed_out.labels("tokenize").inc()
            raise DeadlineExceeded(
                "The request's time ran out in the stage tokenize. Send fewer texts, or try later."
            ) from None
        except asyncio.CancelledError:
            self._metrics.cancelled.labels("tokenize").inc()
            raise
        finally:
            self._requests -= 1

    def _admit(self, characters: int) -> None:
        if characters > MAX_CHARACTERS:
            raise PayloadTooLarge(
                f"The request has {characters} characters or ids; the limit of this route is"
                f" {MAX_CHARACTERS}. Send them in several requests."
            )
        limit = self._settings.max_concurrent_requests
        if self._requests >= limit:
            self._metrics.rejected.labels("concurrency").inc()
            raise Overloaded(
                f"The service is busy: {limit} requests are being worked on."
                " Send the request again in 1 s.",
                retry_after_seconds=1,
            )

    async def _in_slices(
        self, items: Sequence[Item], work: Callable[[Vocabulary, Item], object]
    ) -> bytes:
        vocabulary = self._vocabulary or await self._open()

        def written(part: Sequence[Item]) -> bytes:
            return b",".join(orjson.dumps(work(vocabulary, item)) for item in part)

        if sum(map(len, items)) <= INLINE_CHARACTERS:
            return b"[" + written(items) + b"]"
        parts = []
        for part in _slices(items):
            async with self._turn:
                parts.append(await asyncio.to_thread(written, part))
        return b"[" + b",".join(parts) + b"]"

    async def _open(self) -> Vocabulary:
        artifact = self._engine.artifact
        async with self._turn:
            if self._vocabulary is None:
                # Of what was read when the artifact was opened: its folder may be gone by now.
                content, limit = artifact.read(TOKENIZER), artifact.manifest.max_seq_length
                self._vocabulary = Vocabulary(await asyncio.to_thread(Tokenizer, content, limit))
        return self._vocabulary


def _slices(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Neighbours that together reach SLICE_CHARACTERS; only the last ones may stay below."""
    begin, characters = 0, 0
    for end, item in enumerate(items, start=1):
        characters += len(item)
        if characters >= SLICE_CHARACTERS or end == len(items):
            yield items[begin:end]
            begin, characters = end, 0
