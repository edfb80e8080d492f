"""An engine without a model: what the HTTP layer is tested with."""

import asyncio
import dataclasses
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI
from numpy.typing import NDArray

from s2sent.model.artifact.manifest import Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.token_spans import TokenSpan
from s2sent.model.runtime.tokenizer import TokenizedText
from s2sent.service.app import create_app
from s2sent.service.engine.types import (
    EmbedRequest,
    EmbedResult,
    Item,
    Readiness,
    Result,
    ServedModel,
    TextTokenizer,
)
from s2sent.service.errors import NotReady, ServiceError
from s2sent.service.lanes import Lane
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics

DIM = 8
MAX_TOKENS = 128  # a text with more counts as cut


class OneToken:
    """A text is one token; ids are the tokens themselves."""

    vocab_size = 2**63
    unknown_id: int | None = 3

    def tokenize(self, texts: Sequence[str | Sequence[int]], **options: Any) -> list[TokenizedText]:
        raise NotImplementedError

    def token_spans(self, text: str, *, add_special_tokens: bool) -> list[TokenSpan]:
        return [TokenSpan(1, text, False, 0, len(text.encode()))]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return str(ids)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [*map(str, ids)]


@dataclass
class FakeEngine:
    """Gives every text a vector of its own; ``error`` is raised, if set.

    ``refusal`` is raised before a body is read.

    `embed` waits for ``gate``, and the writing of an answer for ``writing_gate``; ``entered`` tells
    that one of them is waited for.
    """

    error: Exception | None = None
    refusal: ServiceError | None = None
    start_error: Exception | None = None
    gate: asyncio.Event | None = None
    writing_gate: asyncio.Event | None = None
    state: Readiness = Readiness(True, "ready")
    provider: str = "CPUExecutionProvider"
    vectors: NDArray[np.float32] | None = None
    errors: dict[int, ServiceError] = field(default_factory=dict)
    dim: int = DIM
    has_block_weights: bool = True
    threads: int = 2
    tokenizer_threads: int = 3
    calls: list[EmbedRequest] = field(default_factory=list)
    tracked: list[tuple[float, str]] = field(default_factory=list)  # time left, stage
    started: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: int = 0
    drained_within: float | None = None
    drains_cleanly: bool = True

    def __post_init__(self) -> None:
        self.tokenizer = OneToken()
        self.artifact = Artifact(Path("unused"), manifest(self.dim), "f" * 64)

    @property
    def model(self) -> ServedModel:
        return self

    def row_length(self, depth: int | None = None, *, weights: bool = False) -> int:
        raise NotImplementedError

    async def start(self) -> None:
        self.started.set()
        if self.start_error:
            raise self.start_error

    def check_room(self, lanes: Collection[Lane]) -> None:
        """What the engine raises before a body is read."""
        if self.refusal:
            raise self.refusal

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """The vectors of the texts; ``errors`` are those of an engine that skips failed texts."""
        self.calls.append(request)
        if side := request.others:
            self.calls.append(
                dataclasses.replace(request, texts=side.texts, prompt=side.prompt, depth=side.depth)
            )
        texts = [*request.texts, *(request.others.texts if request.others else ())]
        if self.error:
            raise self.error
        async with self._in_flight():
            await self._wait_for(self.gate)
        rows = self.vectors
        if rows is None:
            rows = np.stack([vector_of(text, self.dim) for text in texts])
        tokens = [count_tokens(text) for text in texts]
        truncated = [count > MAX_TOKENS for count in tokens]
        errors = self.errors if request.skip_failed else {}
        ids = [range(count) for count in tokens]
        split = [1] * len(texts) if request.windows else None
        return EmbedResult(rows, tokens, truncated, 0.002, 0.003, 0.004, errors, ids, split)

    async def apply_tokenizer(
        self,
        function: Callable[[TextTokenizer, Item], Result],
        items: Sequence[Item],
        *,
        timeout_seconds: float | None = None,
        admitted: bool = False,
    ) -> list[Result]:
        """What the function makes of a tokenizer for which a text is one token."""
        if self.error:
            raise self.error
        return [function(self.tokenizer, item) for item in items]

    @asynccontextmanager
    async def track(
        self, timeout_seconds: float, *, stage: Callable[[], str]
    ) -> AsyncIterator[None]:
        """In flight, from before the answer is written until ``writing_gate`` opens, if set."""
        self.tracked.append((timeout_seconds, stage()))
        async with self._in_flight():
            yield
            await self._wait_for(self.writing_gate)

    @asynccontextmanager
    async def _in_flight(self) -> AsyncIterator[None]:
        self.in_flight += 1
        try:
            yield
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.in_flight -= 1
            self.finished.set()

    async def _wait_for(self, gate: asyncio.Event | None) -> None:
        if gate:
            self.entered.set()
            await gate.wait()

    def readiness(self) -> Readiness:
        return self.state

    async def drain(self, timeout_seconds: float) -> bool:
        self.drained_within = timeout_seconds
        self.state = Readiness(False, "draining")
        stopping = NotReady("The service is shutting down. Ask another.", retry_after_seconds=1)
        self.error = self.refusal = stopping
        self.draining.set()
        if self.in_flight:
            self.finished.clear()
            await self.finished.wait()
        return self.drains_cleanly


def vector_of(text: str | Sequence[int], dim: int = DIM) -> NDArray[np.float32]:
    """The un-normalised vector [dim] that the fake gives a text."""
    seed = int.from_bytes(hashlib.sha256(str(text).encode()).digest()[:8], "little")
    return 3 * np.random.default_rng(seed).standard_normal(dim).astype(np.float32)


def count_tokens(text: str | Sequence[int]) -> int:
    """Words and two special tokens, or the number of ids."""
    return len(text.split()) + 2 if isinstance(text, str) else len(text)


def manifest(dim: int) -> Manifest:
    """The manifest of the artifact the fake claims to serve."""
    return Manifest(
        name="tiny-s2sent",
        dim=dim,
        max_seq_length=MAX_TOKENS,
        pooling="mean",
        normalize=True,
        precision="weight-int8",
        inputs=("input_ids", "attention_mask"),
        selector={},
        backbone={},
        prompts={"query": "query: "},
        training={},
        scores={},
        parity={},
        fused={},
        versions={},
        files={},
        depths=(2, 4),
    )


def engine_of_blocks(**options: Any) -> FakeEngine:
    """A fake whose model has a selector of all its six blocks."""
    engine = FakeEngine(**options)
    blocks = {"num_blocks": 6}
    of_blocks = dataclasses.replace(engine.artifact.manifest, selector=blocks, backbone=blocks)
    engine.artifact = dataclasses.replace(engine.artifact, manifest=of_blocks)
    return engine


class InProcess(httpx.ASGITransport):
    """The application's answers, each of them recorded and logged before it is returned."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(app)
        self._metrics: Metrics = app.state.service.metrics

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        try:
            return await super().handle_async_request(request)
        finally:
            self._metrics.deferred.run()


def client_of(engine: FakeEngine, **settings: Any) -> httpx.AsyncClient:
    """A client of the application around ``engine``. Nothing starts: the engine is a fake."""
    app = create_app(Settings(**settings), engine=engine)
    return httpx.AsyncClient(transport=InProcess(app), base_url="http://test")
