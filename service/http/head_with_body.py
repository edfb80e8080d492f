"""Sends the head of an answer together with the first bytes of its body."""

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class HeadWithBody:
    """Stands in for a connection's transport until the body of an answer begins.

    uvicorn writes head and body apart. Each write is a system call that wakes the client, which
    takes the cores from inference: MEASURED. An answer without a body, such as one to HEAD, has to
    be written to the transport itself.
    """

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        """Hold the head back until its body begins; all else, such as ``100 Continue``, is sent."""
        if not self._cycle.response_started:
            self._transport.write(data)
        elif self._head is None:
            self._head = data
        else:
            # Also so that the two do not keep each other in memory.
            self._cycle.transport = self._transport
            self._transport.writelines([self._head, data])

    def close(self) -> None:
        """Close the transport, after a head whose body does not come."""
        if self._head is not None:
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the transport is closing or closed."""
        return self._transport.is_closing()
