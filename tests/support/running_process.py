"""The service's process around an engine, in the test's own process and event loop."""

import asyncio
from typing import Any

import httpx

from s2sent.service.engine.types import EmbeddingEngine
from s2sent.service.server import Process, listen
from s2sent.service.settings import Settings
from tests.support.server_process import LOCAL


class Running:
    """A process under test on a free port, in this very process."""

    def __init__(self, engine: EmbeddingEngine, **settings: Any) -> None:
        listener = listen("127.0.0.1", 0)
        self.process = Process(Settings(**settings), engine=engine)
        self.port: int = listener.getsockname()[1]
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", **LOCAL)
        self.task = asyncio.ensure_future(self.process.run(listener))

    async def stopped(self) -> int:
        await self.task
        await self.client.aclose()
        return self.process.exit_code
