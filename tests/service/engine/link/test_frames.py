"""What crosses between an HTTP process and the engine process arrives as it was sent."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s2sent.service import errors as all_errors
from s2sent.service.engine.inference.fair_queue import PendingRequest
from s2sent.service.engine.link.frames import (
    FrameConnection,
    Kind,
    error_of,
    error_payload,
    parts_of,
    request_payload,
    result_of,
    result_payload,
)
from s2sent.service.errors import InferenceFailed, Overloaded, ServiceError
from tests.support.linked_engine import connect

IDS = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5)


def request_of(sequences: list[list[int]], dim: int = 3, **options: Any) -> PendingRequest:
    future: Any = None  # nobody waits
    return PendingRequest(sequences, dim, future, **options)


@given(
    st.lists(st.lists(IDS, min_size=1, max_size=4), min_size=1, max_size=2),
    st.sampled_from(("interactive", "bulk")),
    st.sampled_from((None, 0, 7)),
    st.booleans(),
    st.booleans(),
)
def test_the_parts_of_a_request_arrive_as_they_were(
    texts: list[list[list[int]]], lane: Any, depth: int | None, weights: bool, partial: bool
) -> None:
    errors: dict[int, ServiceError] | None = {} if partial else None
    parts = [
        request_of(own, lane=lane, depth=depth, weights=weights, errors=errors) for own in texts
    ]
    arrived = [request_of(**part) for part in parts_of(memoryview(request_payload(parts)))]
    assert [[[*ids] for ids in part.sequences] for part in arrived] == texts
    for part in arrived:
        assert (part.lane, part.depth, part.weights, part.errors) == (lane, depth, weights, errors)
        assert part.embeddings.shape[1] == 3


def test_only_the_texts_that_are_to_be_embedded_are_sent() -> None:
    part = request_of([[1], [2, 3], [4]], positions=[0, 2])
    (arrived,) = parts_of(memoryview(request_payload([part])))
    assert arrived["sequences"] == [(1,), (4,)]


def test_a_result_arrives_to_the_bit() -> None:
    request = request_of([[1], [2]], errors={1: InferenceFailed("")})
    request.embeddings[:] = [[0.1, np.nan, -0.0], [np.inf, 1e-45, 3]]
    request.queue_seconds, request.inference_seconds = 0.1, 0.3
    payload = memoryview(result_payload(request))
    result = result_of(payload, 3)
    assert result.rows.tobytes() == request.embeddings.tobytes()
    assert (result.failed, result.queue_seconds, result.inference_seconds) == ([1], 0.1, 0.3)


def kinds_of(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds_of(below)


@pytest.mark.parametrize(
    "kind", [k for k in kinds_of(ServiceError) if k.__module__ == all_errors.__name__]
)
def test_every_error_arrives_as_what_it_is(kind: type[ServiceError]) -> None:
    arrived = error_of(
        memoryview(
            error_payload(
                kind(
                    "no \udc80".encode("ascii", "ignore").decode(),
                    param="inputs",
                    retry_after_seconds=3,
                )
            )
        )
    )
    assert type(arrived) is kind
    assert (arrived.message, arrived.param, arrived.retry_after_seconds) == ("no ", "inputs", 3)


class Recorder(FrameConnection):
    """Keeps the frames that come."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[int, int, bytes]] = []

    def received(self, kind: int, number: int, payload: memoryview) -> None:
        self.frames.append((kind, number, bytes(payload)))


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_frames_arrive_whole_however_the_bytes_come(
    payloads: list[bytes], data: st.DataObject
) -> None:
    async def sent() -> bytes:
        sender, receiver = Recorder(), Recorder()
        written: list[bytes] = []

        class Transport(asyncio.Transport):
            def write(self, data: Any) -> None:
                written.append(data)

        sender.connection_made(Transport())
        for number, payload in enumerate(payloads):
            sender.send(Kind.SUBMIT, number, payload)
        await asyncio.sleep(0)
        assert len(written) == bool(payloads)  # one write for all
        stream = b"".join(written)
        while stream:
            size = data.draw(st.integers(1, len(stream)))
            receiver.data_received(stream[:size])
            stream = stream[size:]
        expected = [(Kind.SUBMIT, number, payload) for number, payload in enumerate(payloads)]
        assert receiver.frames == expected
        return stream

    asyncio.run(sent())


async def test_a_large_frame_crosses_a_socket_and_what_is_sent_after_the_end_is_lost() -> None:
    one, other = Recorder(), Recorder()
    await connect(one, other)
    large = bytes(5_000_000)
    one.send(Kind.ROWS, 2**40, large)
    while not other.frames:
        await asyncio.sleep(0.001)
    assert other.frames == [(Kind.ROWS, 2**40, large)]
    assert one.unsent_bytes == 0
    other.close()
    while one._transport:
        await asyncio.sleep(0.001)
    one.send(Kind.ROWS, 1, b"lost")


def test_overloaded_keeps_its_status() -> None:
    assert (
        error_of(memoryview(error_payload(Overloaded("busy", retry_after_seconds=9)))).status == 429
    )
