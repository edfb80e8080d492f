"""An engine behind a socket: both ends of `service.engine.link`, on one event loop."""

import asyncio
import os
import socket
from functools import partial
from typing import Any, Self

import pytest

from s2sent.service.engine.engine import Engine
from s2sent.service.engine.link.board import Board
from s2sent.service.engine.link.client import EngineConnection, RemoteEngine, RemoteModel
from s2sent.service.engine.link.server import HttpProcessConnection, LinkServer
from s2sent.service.engine.types import Readiness, ServedModel
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics


def new_board(processes: int) -> Board:
    """A board in memory of its own."""
    descriptor = os.memfd_create("board")
    try:
        os.ftruncate(descriptor, Board.size(processes))
        return Board.of(descriptor, processes)
    finally:
        os.close(descriptor)


async def connect(*protocols: asyncio.Protocol) -> None:
    """Connects two protocols."""
    loop = asyncio.get_running_loop()
    for protocol, end in zip(protocols, socket.socketpair(), strict=True):
        await loop.create_unix_connection(partial(_same, protocol), sock=end)


def _same(protocol: asyncio.Protocol) -> asyncio.Protocol:
    return protocol


class LinkedEngine(RemoteEngine):
    """A `RemoteEngine` that owns the engine at the other end and its model."""

    core: Engine
    server: LinkServer
    near: EngineConnection
    far: HttpProcessConnection

    @classmethod
    async def of(
        cls, core: Engine, settings: Settings, metrics: Metrics, model: ServedModel, **options: Any
    ) -> Self:
        """Connect to an engine that has started."""
        board = new_board(2)

        async def answer(question: Any) -> Any:
            return question

        server = LinkServer(core, board, answer=answer)
        near = EngineConnection(
            board, 1, max_queue_tokens=settings.max_queue_tokens, samples=lambda: b"[]"
        )
        far = HttpProcessConnection(
            server, 1, on_ready=lambda: None, on_samples=lambda _, asked: None, **options
        )
        await connect(near, far)
        engine = cls(settings, metrics, near)
        engine.core, engine.server, engine.near, engine.far = core, server, near, far
        server.describe(b"")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(RemoteModel, "of", lambda _: model)
            await engine.start()
        return engine

    def readiness(self) -> Readiness:
        """What the engine process would tell at this moment."""
        own = super().readiness()
        return own if own.reason == "draining" else self.core.readiness()

    async def drain(self, timeout_seconds: float) -> bool:
        """Drain this end, then the other."""
        finished = await super().drain(timeout_seconds)
        await self.core.drain(timeout_seconds)
        self.near.close()
        return finished
