"""Answers in pieces: counted as memory while they are made, and sent as fast as they are read."""

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from s2sent.service.api.embedding import serializing, service_of
from s2sent.service.errors import ServiceError
from s2sent.service.http.context import context_of
from s2sent.service.http.memory import Holding

logger = logging.getLogger(__name__)

Pieces = Sequence[bytes]  # an answer, when they are joined

# A shorter answer is sent at once. What is not sent of a piece waits in the transport.
SENT_BYTES = 65_536


def hold_answer(request: Request, count: int) -> None:
    """Count an answer of so many bytes, as far as it is made or foreseen; raises Overloaded."""
    context = context_of(request)
    if context.answer_holding is None:
        context.answer_holding = Holding(service_of(request).answer_memory)
    context.answer_holding.grow_to(count)


def answer_of(
    request: Request, pieces: Pieces, *, media_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """A 200 with ``pieces``; raises Overloaded where there is no memory for it."""
    length = sum(map(len, pieces))
    if holding := context_of(request).answer_holding:
        holding.release()  # it may have been foreseen longer than it is
    hold_answer(request, length)
    if length <= SENT_BYTES:
        return Response(b"".join(pieces), headers=headers, media_type=media_type)
    headers = {**(headers or {}), "content-length": str(length)}
    return _LongAnswer(request, pieces, headers=headers, media_type=media_type)


class _LongAnswer(Response):
    """An answer that is in flight until it is sent: within its deadline, and a drain waits for it.

    At its deadline, and when the engine aborts, its connection ends: the client sees it cut off.
    """

    def __init__(self, request: Request, pieces: Pieces, **head: Any) -> None:
        super().__init__(**head)
        self._request = request
        self._pieces = deque(pieces)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        abort = context_of(self._request).abort
        try:
            async with serializing(self._request):
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                for body in self._chunks():
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except ServiceError as error:
            if abort is None:  # a server other than ours closes it
                raise
            logger.info("the answer was cut off: %s", error.message)
            abort()
            await receive()  # the client's disconnect

    def _chunks(self) -> Iterator[bytes]:
        """The pieces as chunks of SENT_BYTES; those that were sent are let go."""
        waiting = bytearray()
        while self._pieces:
            waiting += self._pieces.popleft()
            while len(waiting) >= SENT_BYTES or (waiting and not self._pieces):
                yield bytes(waiting[:SENT_BYTES])
                del waiting[:SENT_BYTES]
