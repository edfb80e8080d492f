"""A server of one ASGI application over `HttpConnection`, and what it says to a client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import uvicorn
from starlette.types import ASGIApp

from s2sent.service.http.connection.protocol import HttpConnection
from s2sent.service.server import listen

KEEP_ALIVE_SECONDS = 0.2


@contextlib.asynccontextmanager
async def serving_app(
    app: ASGIApp, keep_alive_seconds: float = KEEP_ALIVE_SECONDS
) -> AsyncIterator[tuple[int, set[HttpConnection]]]:
    """The port at which ``app`` answers, and the connections that are open."""
    config = uvicorn.Config(app, http=HttpConnection, lifespan="off", log_config=None)
    config.timeout_keep_alive = keep_alive_seconds  # type: ignore[assignment]  # any number of seconds will do
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()[1], server.server_state.connections  # type: ignore[misc]  # all are of this class
        server.should_exit = True
        await serving


@contextlib.asynccontextmanager
async def served(
    app: ASGIApp, keep_alive_seconds: float = KEEP_ALIVE_SECONDS
) -> AsyncIterator[int]:
    """The port at which ``app`` answers."""
    async with serving_app(app, keep_alive_seconds) as (port, _):
        yield port


async def all_of(port: int, *pieces: bytes) -> bytes:
    """Everything a server says until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
    content = await reader.read()
    writer.close()
    return content
