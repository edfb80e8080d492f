"""Sends the head of an answer together with the first bytes of its body."""

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class HeadWithBody:
    """What an answer is written to: the connection's transport, which gets the head one write late.

    uvicorn writes head and body apart. Each write is a system call that wakes the client, which
    takes the cores from inference: in one, MEASURED. An answer
    without a body, such as one to HEAD, must be written to the transport itself.
    """

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        self._head: bytes | None = None  # held, until the body begins
        self._body_began = False

    def write(self, data: bytes) -> None:
        """Hold the head back, and send all else, such as ``100 Continue``."""
        if self._body_began or not self._cycle.response_started:
            self._transport.write(data)
        elif self._head is None:
            self._head = data
        else:
            self._body_began = True
            self._transport.writelines([self._head, data])

    def close(self) -> None:
        """Close the transport, once a head that is held has been sent."""
        if self._head is not None and not self._body_began:
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the transport is closing or closed."""
        return self._transport.is_closing()
