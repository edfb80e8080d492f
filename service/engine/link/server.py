"""The engine process's end: requests of an HTTP process go into the queue, results go back.

Everything is done on the event loop of the engine. What an HTTP process waits for is dropped when
its connection is lost.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from s2sent.model.artifact.manifest import TOKENIZER
from s2sent.model.artifact.reader import Artifact
from s2sent.service.engine.engine import Engine
from s2sent.service.engine.inference.fair_queue import PendingRequest
from s2sent.service.engine.link.board import Board
from s2sent.service.engine.link.frames import (
    FrameConnection,
    Kind,
    error_payload,
    parts_of,
    result_payload,
)
from s2sent.service.engine.types import Readiness, ServedModel
from s2sent.service.errors import ServiceError
from s2sent.service.lanes import LANES

# The board may be so old: what it says is only a first look, and runs may follow fast.
PUBLISH_SECONDS = 0.002


class LinkServer:
    """The engine process's connections, by number of the HTTP process, and what they share.

    ``answer`` gives the answer to a process's question, or raises ServiceError.
    """

    def __init__(
        self,
        engine: Engine,
        board: Board,
        *,
        answer: Callable[[Any], Awaitable[Any]],
    ) -> None:
        self.engine = engine
        self.board = board
        self.answer = answer
        self.connections: dict[int, HttpProcessConnection] = {}
        self._model: bytes | None = None
        self._state: tuple[bool, str, bool] = (False, "starting", False)
        self._publishes_soon = False

    def add(self, process: int, connection: "HttpProcessConnection") -> None:
        """Tell a connection, which has been made, what is known by now."""
        self.connections[process] = connection
        connection.send_json(Kind.STATE, 0, self._state)
        if self._model is not None:
            connection.send(Kind.MODEL, 0, self._model)

    def describe(self, model: bytes) -> None:
        """Tell all processes what is served (`model_payload`), also those to come."""
        self._model = model
        self._send_all(Kind.MODEL, 0, model)

    def set_state(self, readiness: Readiness, *, failed: bool = False) -> None:
        """Tell all processes whether the service is ready, unless they know.

        They are told after the answers that have been given by now.
        """
        state = readiness.ready, readiness.reason, failed
        if state != self._state:
            self._state = state
            asyncio.get_running_loop().call_soon(self._send_state)

    def _send_state(self) -> None:
        self._send_all(Kind.STATE, 0, orjson.dumps(self._state))

    def _send_all(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None:
        for connection in self.connections.values():
            connection.send(kind, number, payload)

    def collect(self) -> list[int]:
        """Ask all processes for their metrics; returns which these are."""
        self._send_all(Kind.COLLECT, 1)
        return list(self.connections)

    def stop(self) -> None:
        """Tell all processes to finish what they have accepted, and to end."""
        self._send_all(Kind.STOP)

    def publish(self) -> None:
        """Write the engine's load on the board."""
        self._publishes_soon = False
        tokens = {lane: self.engine.queue.tokens_in(lane) for lane in LANES}
        seconds = {lane: self.engine.seconds_to_empty(lane) for lane in (*LANES, None)}
        self.board.publish(tokens, seconds)

    def publish_soon(self) -> None:
        if not self._publishes_soon:
            self._publishes_soon = True
            asyncio.get_running_loop().call_later(PUBLISH_SECONDS, self.publish)


class _LinkedRequest(PendingRequest):
    """A part of an HTTP process's request: that process is answered, and the board says when it
    has started.
    """

    __slots__ = ("_connection", "_number")

    def __init__(
        self, connection: "HttpProcessConnection", number: int, part: dict[str, Any]
    ) -> None:
        self._connection, self._number = connection, number
        super().__init__(
            future=None,  # type: ignore[arg-type]  # which only its `_answer` reads
            arrival=connection.heard,
            **part,
        )

    @property
    def started(self) -> bool:
        return self._connection.board.has_started(self._connection.process, self._number)

    @started.setter
    def started(self, started: bool) -> None:
        self._connection.board.set_started(self._connection.process, self._number, started)

    def _answer(self, error: ServiceError | None) -> bool:
        return self._connection.answer(self._number, self, error)


class HttpProcessConnection(FrameConnection):
    """The connection of one HTTP process, number ``process`` from 0.

    ``on_ready`` is called when the process serves, ``on_samples`` with its metrics as
    JSON, and whether it was asked for them.
    """

    def __init__(
        self,
        owner: LinkServer,
        process: int,
        *,
        on_ready: Callable[[], None],
        on_samples: Callable[[bytes, bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._owner = owner
        self.board = owner.board
        self.process = process
        self._on_ready = on_ready
        self._on_samples = on_samples
        self._clock = clock
        self._pending: dict[int, PendingRequest] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self.heard = clock()  # when the process last sent something

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a stream's
        super().connection_made(transport)
        self._owner.add(self.process, self)

    def data_received(self, data: bytes) -> None:
        self.heard = self._clock()
        super().data_received(data)

    def received(self, kind: int, number: int, payload: memoryview) -> None:
        if kind == Kind.SUBMIT:
            self._submit(number, payload)
        elif kind == Kind.DROP:
            self._drop(number)
        elif kind == Kind.SAMPLES:
            self._on_samples(bytes(payload), number > 0)
        elif kind == Kind.CALL:
            call = asyncio.get_running_loop().create_task(self._call(number, orjson.loads(payload)))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        elif kind == Kind.READY:
            self._on_ready()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop all that the process waits for."""
        super().connection_lost(exc)
        if self._owner.connections.get(self.process) is self:  # else its successor's
            del self._owner.connections[self.process]
        for number in list(self._pending):
            self._drop(number)
        for call in self._calls:
            call.cancel()

    def _submit(self, number: int, payload: memoryview) -> None:
        requests = {
            at: _LinkedRequest(self, at, part) for at, part in enumerate(parts_of(payload), number)
        }
        self._pending.update(requests)
        try:
            self._owner.engine.enqueue([*requests.values()])
        except ServiceError as error:
            for at, request in requests.items():
                self.answer(at, request, error)
        self._owner.publish_soon()

    def answer(self, number: int, request: PendingRequest, error: ServiceError | None) -> bool:
        """Send the result of a part, or its error; False where nobody waits for it."""
        if self._pending.pop(number, None) is None:  # dropped
            return False
        if error:
            self._owner.engine.drop(request)  # its other texts may wait
            self.send(Kind.FAILED, number, error_payload(error))
        else:
            self.send(Kind.ROWS, number, result_payload(request))
        self._owner.publish_soon()
        return True

    def _drop(self, number: int) -> None:
        request = self._pending.pop(number, None)
        if request is not None:
            self._owner.engine.drop(request)
            self._owner.publish_soon()

    async def _call(self, number: int, question: Any) -> None:
        try:
            self.send_json(Kind.REPLY, number, await self._owner.answer(question))
        except ServiceError as error:
            self.send(Kind.REFUSED, number, error_payload(error))


def model_payload(artifact: Artifact, model: ServedModel) -> bytes:
    """What is served, and its tokenizer, as MODEL has them."""
    about = {
        "provider": model.provider,
        "has_block_weights": model.has_block_weights,
        "path": str(artifact.path),
        "fingerprint": artifact.fingerprint,
        "manifest": artifact.manifest.to_json(),
    }
    return orjson.dumps(about) + b"\n" + artifact.read(TOKENIZER)
