"""The frames on the socket between an HTTP process and the engine process, and their payloads.

A frame is a header (bytes of the payload, kind, number) and a payload. Integers are 32 bits and
numbers of rows are float32, in the machine's byte order: both ends run on one machine. Small and
rare payloads are JSON.
"""

import asyncio
from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import chain
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from s2sent.service import errors
from s2sent.service.engine.inference.fair_queue import PendingRequest
from s2sent.service.errors import ServiceError
from s2sent.service.lanes import LANES

HEADER = Struct("=IIQ")  # bytes of the payload, kind, number
_RESULT = Struct("=ddI")  # seconds waited and run, summed over the sequences; sequences that failed


class Kind(IntEnum):
    """What a frame is. Numbers of SUBMIT to FAILED are requests', of CALL to REFUSED calls'."""

    SUBMIT = 1  # from an HTTP process: token ids to embed; its parts have numbers in a row
    DROP = 2  # from an HTTP process: nobody waits for this part
    ROWS = 3  # the embeddings of a part
    FAILED = 4  # the error of a part
    CALL = 5  # from an HTTP process: a question, as JSON
    REPLY = 6  # its answer, as JSON
    REFUSED = 7  # its error
    READY = 8  # from an HTTP process: it serves
    SAMPLES = 9  # from an HTTP process, once a second and when asked: its metrics, as JSON
    COLLECT = 10  # to an HTTP process: send SAMPLES
    MODEL = 11  # to an HTTP process: what is served, and the tokenizer
    STATE = 12  # to an HTTP process: [is ready, the reason, the engine has failed], as JSON
    STOP = 13  # to an HTTP process: finish what was accepted, and end


class Result(NamedTuple):
    """What the engine process gives for a part: rows [sequences, row length], and its times."""

    rows: NDArray[np.float32]  # read-only
    failed: list[int]  # sequences, whose rows have no meaning
    queue_seconds: float
    inference_seconds: float


class FrameConnection(asyncio.Protocol):
    """One end of the socket. Frames of one turn of the event loop are written together.

    A subclass has `received`. What is sent on a closed connection is lost.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._chunks: list[bytes] = []
        self._have, self._need = 0, HEADER.size

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the other end has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a stream's
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def close(self) -> None:
        """Close the connection without sending what waits."""
        if self._transport:
            self._transport.abort()

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None:
        """Send a frame at the end of this turn of the event loop."""
        if self._transport is None:
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += HEADER.pack(len(payload), kind, number), payload

    def send_json(self, kind: Kind, number: int, value: Any) -> None:
        self.send(kind, number, orjson.dumps(value))

    def received(self, kind: int, number: int, payload: memoryview) -> None:
        """A frame has come; ``payload`` is only valid during the call."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        """Gather bytes and hand on complete frames."""
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        view = memoryview(data if len(self._chunks) == 1 else b"".join(self._chunks))
        at, self._need = 0, HEADER.size
        while len(view) - at >= self._need:
            size, kind, number = HEADER.unpack_from(view, at)
            end = at + HEADER.size + size
            if end > len(view):
                self._need = end - at
                break
            self.received(kind, number, view[at + HEADER.size : end])
            at = end
        self._chunks = [bytes(view[at:])] if at < len(view) else []
        self._have = len(view) - at

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport:
            self._transport.write(b"".join(unsent))


def request_payload(parts: Sequence[PendingRequest]) -> bytes:
    """The parts of a request, as SUBMIT has them: the sequences that are to be embedded.

    Integers only: the lane, whether for block weights, whether texts fail alone, and of each part
    its depth or -1, the numbers of a row, how many sequences, their lengths and their ids.
    """
    first = parts[0]
    numbers = array("i", (LANES.index(first.lane), first.weights, first.errors is not None))
    for part in parts:
        sequences = [part.sequences[position] for position in part.positions]
        depth = -1 if part.depth is None else part.depth
        numbers.extend((depth, part.embeddings.shape[1], len(sequences)))
        numbers.extend(map(len, sequences))
        numbers.extend(chain.from_iterable(sequences))
    return numbers.tobytes()


def parts_of(payload: memoryview) -> Iterator[dict[str, Any]]:
    """The parts that `request_payload` was made of, as arguments of `PendingRequest`."""
    numbers = tuple(payload.cast("i").tolist())
    lane, weights, partial = numbers[:3]
    at = 3
    while at < len(numbers):
        depth, row_length, count = numbers[at : (at := at + 3)]
        lengths = numbers[at : (at := at + count)]
        sequences = [numbers[at : (at := at + length)] for length in lengths]
        yield {
            "sequences": sequences,
            "dim": row_length,
            "lane": LANES[lane],
            "depth": None if depth < 0 else depth,
            "weights": bool(weights),
            "errors": {} if partial else None,
        }


def result_payload(request: PendingRequest) -> bytes:
    """The result of a part, as ROWS has it."""
    failed = array("i", sorted(request.errors)).tobytes() if request.errors else b""
    head = _RESULT.pack(request.queue_seconds, request.inference_seconds, len(failed) // 4)
    return b"".join((head, failed, request.embeddings.data))


def result_of(payload: memoryview, row_length: int) -> Result:
    """What `result_payload` was made of."""
    queue_seconds, inference_seconds, failed = _RESULT.unpack_from(payload)
    begin = _RESULT.size + 4 * failed
    rows = np.frombuffer(payload[begin:], np.float32).reshape(-1, row_length)
    return Result(
        rows, payload[_RESULT.size : begin].cast("i").tolist(), queue_seconds, inference_seconds
    )


def error_payload(error: ServiceError) -> bytes:
    """An error, as FAILED and REFUSED have it."""
    what = type(error).__name__, error.message, error.param, error.retry_after_seconds
    return orjson.dumps(what)


def error_of(payload: memoryview) -> ServiceError:
    """What `error_payload` was made of."""
    name, message, param, seconds = orjson.loads(payload)
    kind: type[ServiceError] = getattr(errors, name)
    return kind(message, param=param, retry_after_seconds=seconds)
