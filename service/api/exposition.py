"""The metrics as text for scrapers: encoded one at a time, and not anew for each of them."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder
from prometheus_client.openmetrics import exposition as openmetrics

from s2sent.service.telemetry.metrics import Metrics
from s2sent.service.threads import pool_of

# Encoding takes some 10 ms of a core, which requests would wait for.
FRESH_SECONDS = 1.0


class Exposition:
    """Encodes metrics in a thread, for one event loop; each encoding serves for a while."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._encoding = asyncio.Lock()
        self._pool = pool_of(1, "metrics")
        self._latest: dict[str, tuple[float, bytes]] = {}  # time and text, by content type

    async def text(self, accept: str) -> tuple[bytes, str]:
        """The metrics as an ``Accept`` header asks for them, and their content type.

        The counts are at most FRESH_SECONDS old.
        """
        encode, content_type = _format(accept)
        async with self._encoding:
            made, text = self._latest.get(content_type, (-FRESH_SECONDS, b""))
            if (now := self._clock()) - made >= FRESH_SECONDS:
                gather = self._metrics.gather
                registry = await gather() if gather else self._metrics.registry
                text = await asyncio.get_running_loop().run_in_executor(
                    self._pool, encode, registry
                )
                self._latest[content_type] = now, text
        return text, content_type


def _format(accept: str) -> tuple[Callable[..., bytes], str]:
    """One of two formats; the library would make another for each version that is asked for."""
    try:
        _, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # of a version that is quoted or no number
        content_type = ""
    if content_type.startswith("application/openmetrics-text"):
        return partial(
            openmetrics.generate_latest, version="1.0.0"
        ), openmetrics.CONTENT_TYPE_LATEST
    return generate_latest, CONTENT_TYPE_PLAIN_0_0_4
