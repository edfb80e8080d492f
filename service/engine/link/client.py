"""The HTTP process's end: an engine whose queue and model are in the engine process."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from s2sent.model.artifact.manifest import Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.tokenizer import Tokenizer
from s2sent.service.engine.admission import not_ready
from s2sent.service.engine.base import BaseEngine
from s2sent.service.engine.deadlines import InFlightRequests
from s2sent.service.engine.inference.fair_queue import PendingRequest
from s2sent.service.engine.link.board import Board
from s2sent.service.engine.link.frames import (
    FrameConnection,
    Kind,
    error_of,
    request_payload,
    result_of,
)
from s2sent.service.engine.tokenization import start_threads_of
from s2sent.service.engine.types import Readiness, TextTokenizer
from s2sent.service.errors import failed_text
from s2sent.service.lanes import Lane
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics

BEAT_SECONDS = 1.0  # between two reports to the engine process
LOST = "the engine process has ended"


@dataclass(frozen=True)
class RemoteModel:
    """What an HTTP process knows of the model that the engine process runs."""

    artifact: Artifact
    tokenizer: TextTokenizer
    provider: str
    has_block_weights: bool

    @classmethod
    def of(cls, payload: bytes) -> "RemoteModel":
        """What MODEL tells, whose tokenizer the engine process has verified."""
        head, _, tokenizer = payload.partition(b"\n")
        about = orjson.loads(head)
        manifest = Manifest.from_json(about["manifest"])
        artifact = Artifact(Path(about["path"]), manifest, about["fingerprint"])
        opened = Tokenizer(
            tokenizer,
            manifest.max_seq_length,
            manifest.template,
            pools_prompts=manifest.pools_prompts,
        )
        return cls(artifact, opened, about["provider"], about["has_block_weights"])

    def row_length(self, depth: int | None = None, *, weights: bool = False) -> int:
        manifest = self.artifact.manifest
        return manifest.dim * (len(manifest.fused_blocks(depth)) if weights else 1)


class EngineConnection(FrameConnection):
    """The connection to the engine process, and the queue there, as `TextQueue` has it.

    ``samples`` gives this process's metrics as JSON. ``on_stop`` and ``on_state`` are called when
    the engine process says so; a lost connection is a state too.
    """

    def __init__(
        self,
        board: Board,
        process: int,
        *,
        max_queue_tokens: int,
        samples: Callable[[], bytes],
    ) -> None:
        super().__init__()
        self._max_queue_tokens = max_queue_tokens
        self.board = board
        self.process = process
        self._samples = samples
        self._numbers = count(1)
        self._of_number: dict[int, PendingRequest] = {}
        self._number_of: dict[PendingRequest, int] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._beat: asyncio.TimerHandle | None = None
        self.model: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.on_stop: Callable[[], None] = lambda: None
        self.on_state: Callable[[Readiness, bool], None] = lambda _, failed: None

    # --- as `service.engine.admission.TextQueue` ---

    def tokens_in(self, lane: Lane) -> int:
        return self.board.tokens_in(lane)

    def is_full(self, lane: Lane) -> bool:
        return self.tokens_in(lane) >= self._max_queue_tokens

    def submit(self, *parts: PendingRequest) -> bool:
        """Send the parts of a request to the engine process, which may refuse them."""
        first = next(self._numbers)
        for number, part in enumerate(parts, first):
            self.board.set_started(self.process, number, False)
            self._of_number[number], self._number_of[part] = part, number
        for _ in parts[1:]:
            next(self._numbers)
        self.send(Kind.SUBMIT, first, request_payload(parts))
        return True

    def drop(self, request: PendingRequest) -> None:
        if (number := self._number_of.pop(request, None)) is not None:
            del self._of_number[number]
            self.send(Kind.DROP, number)

    def has_started(self, request: PendingRequest) -> bool:
        """Whether a text of a part has been handed to the encoder, also when it is answered."""
        number = self._number_of.get(request)
        return number is None or self.board.has_started(self.process, number)

    # --- questions ---

    async def call(self, question: Any) -> Any:
        """The engine process's answer to a question; raises ServiceError."""
        if self._transport is None:
            raise not_ready("failed")
        number = next(self._numbers)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        self.send_json(Kind.CALL, number, question)
        try:
            return await answer
        finally:
            del self._calls[number]

    # --- the connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a stream's
        super().connection_made(transport)
        self._report()

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine process has ended: nothing is answered any more."""
        super().connection_lost(exc)
        if self._beat:
            self._beat.cancel()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(not_ready("failed"))
        self.on_state(Readiness(False, LOST), True)

    def received(self, kind: int, number: int, payload: memoryview) -> None:
        if kind == Kind.ROWS:
            self._take_rows(number, payload)
        elif kind == Kind.FAILED:
            if part := self._take(number):
                part.settle(error_of(payload))
        elif kind in (Kind.REPLY, Kind.REFUSED):
            self._take_reply(kind, number, payload)
        elif kind == Kind.STATE:
            ready, reason, failed = orjson.loads(payload)
            self.on_state(Readiness(ready, reason), failed)
        elif kind == Kind.MODEL:
            self.model.set_result(bytes(payload))
        elif kind == Kind.COLLECT:
            self.send(Kind.SAMPLES, number, self._samples())
        elif kind == Kind.STOP:
            self.on_stop()

    def _take(self, number: int) -> PendingRequest | None:
        part = self._of_number.pop(number, None)
        if part is not None:
            del self._number_of[part]
        return part

    def _take_rows(self, number: int, payload: memoryview) -> None:
        part = self._take(number)
        if part is None or part.future.done():
            return
        result = result_of(payload, part.embeddings.shape[1])
        if len(result.rows) == len(part.embeddings):
            part.embeddings[:] = result.rows  # several times as fast
        else:
            part.embeddings[part.positions] = result.rows
        part.queue_seconds, part.inference_seconds = result.queue_seconds, result.inference_seconds
        if part.errors is not None:
            at = (part.positions[sequence] for sequence in result.failed)
            part.errors.update((position, failed_text(position)) for position in at)
        part.settle()

    def _take_reply(self, kind: int, number: int, payload: memoryview) -> None:
        answer = self._calls.get(number)
        if answer is None or answer.done():
            return
        if kind == Kind.REPLY:
            answer.set_result(orjson.loads(payload))
        else:
            answer.set_exception(error_of(payload))

    def _report(self) -> None:
        self.send(Kind.SAMPLES, 0, self._samples())
        self._beat = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._report)


class _SharedInFlight(InFlightRequests):
    """The requests of this process; their length is that of all processes, by the board."""

    def __init__(
        self, connection: EngineConnection, metrics: Metrics, limit_seconds: float
    ) -> None:
        super().__init__(metrics, limit_seconds)
        self._board, self._process = connection.board, connection.process

    def __len__(self) -> int:
        return self._board.in_flight

    def add(self, scope: asyncio.Timeout) -> None:
        super().add(scope)
        self._board.set_in_flight(self._process, len(self._scopes))

    def remove(self, scope: asyncio.Timeout) -> None:
        super().remove(scope)
        self._board.set_in_flight(self._process, len(self._scopes))


class RemoteEngine(BaseEngine):
    """An engine whose texts wait and run in the engine process.

    ``on_fatal`` is called with a sentence when that process has ended or failed.
    """

    def __init__(self, settings: Settings, metrics: Metrics, connection: EngineConnection) -> None:
        in_flight = _SharedInFlight(connection, metrics, settings.request_timeout_seconds)
        seconds_to_empty = connection.board.seconds_to_empty
        super().__init__(settings, metrics, connection, seconds_to_empty, in_flight)
        self._connection = connection
        self.on_fatal: Callable[[str], None] = lambda reason: None
        self._readiness = Readiness(False, "starting")
        connection.on_state = self._on_state

    async def start(self) -> None:
        """Wait for the engine process's model, and open its tokenizer; raises NoMoreThreads."""
        self._model = RemoteModel.of(await self._connection.model)
        start_threads_of(self._model.tokenizer)
        if self._admission.state == "starting":  # neither drained nor failed meanwhile
            self._admission.state = "serving"
            self._connection.send(Kind.READY)

    def readiness(self) -> Readiness:
        """Whether traffic should be sent to the service, of which this process is a part."""
        starts_last = self._admission.state == "starting" and self._readiness.ready
        if starts_last or self._admission.state == "draining":
            return Readiness(False, self._admission.state)
        return self._readiness

    async def drain(self, timeout_seconds: float) -> bool:
        """Refuse new work and finish what was accepted, as `service.engine.engine.Engine.drain`."""
        finished = await self._settled(timeout_seconds)
        self._tokenization.shut_down()
        return finished

    def _on_state(self, readiness: Readiness, failed: bool) -> None:
        self._readiness = readiness
        if failed and self._admission.state != "failed":
            self._admission.state = "failed"
            self._abort_in_flight()
            self.on_fatal(readiness.reason)
