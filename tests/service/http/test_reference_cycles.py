"""No request through the whole service leaves reference cycles, also one that is not answered.

So the garbage collector, whose pauses grow with what waits, hardly has to run (`service.process`).
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from s2sent.model.artifact.reader import Artifact
from s2sent.service.app import create_app
from tests.support.fake_engine import manifest
from tests.support.fake_model import DIM, POISON, FakeEncoder, FakeTokenizer, serving

ARTIFACT = Artifact(Path("unused"), manifest(DIM), "f" * 64)
BODIES = {200: b'{"inputs": "a"}', 424: b'{"inputs": ["a", "%s"]}' % POISON.encode()}  # of a status

pytestmark = pytest.mark.usefixtures("collector")


async def status_of(app: FastAPI, body: bytes) -> int:
    """The status of the answer to a body of ``/embed``."""
    found: list[int] = []
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return unread.pop() if unread else await asyncio.Future()  # the client stays

    async def send(message: Any) -> None:
        found.extend([message["status"]] if "status" in message else [])

    route = {"type": "http", "method": "POST", "path": "/embed", "query_string": b"", "state": {}}
    headers = [(b"content-type", b"application/json")]
    await app(route | {"headers": headers}, receive, send)
    app.state.service.metrics.deferred.run()
    return found[0]


async def left_by(app: FastAPI, body: bytes, status: int) -> int:
    """Objects in cycles that requests leave, after the first, which makes some once for all."""
    assert await status_of(app, body) == status
    gc.collect()
    for _ in range(3):
        assert await status_of(app, body) == status
    return gc.collect()


@asynccontextmanager
async def serving_app(**settings: Any) -> AsyncIterator[tuple[FastAPI, FakeEncoder]]:
    async with serving(artifact=ARTIFACT, tokenizer=FakeTokenizer(), **settings) as harness:
        yield create_app(harness.settings, engine=harness.engine), harness.encoder


@pytest.mark.parametrize("status", BODIES)
async def test_an_answer_leaves_none(status: int) -> None:
    async with serving_app() as (app, _):
        assert await left_by(app, BODIES[status], status) == 0


async def test_a_refusal_leaves_none() -> None:
    async with serving_app(max_concurrent_requests=1) as (app, encoder):
        encoder.gate.clear()
        held = asyncio.create_task(status_of(app, BODIES[200]))
        await encoder.until_entered()
        assert await left_by(app, BODIES[200], 429) == 0
        encoder.gate.set()
        assert await held == 200


async def test_a_request_out_of_time_leaves_none() -> None:
    async with serving_app(request_timeout_seconds=0.05) as (app, encoder):
        encoder.gate.clear()
        assert await left_by(app, BODIES[200], 504) == 0
        encoder.gate.set()
