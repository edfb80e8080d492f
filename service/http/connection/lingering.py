"""Closing a connection whose client still sends: it is read on, so that its answer is not lost.

A close would reset it, and the client may lose the answer that it has not read (RFC 9112, 9.6).
"""

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LINGER_SECONDS = 2.0  # for which such a connection is read on


class OrderedFlow(FlowControl):
    """Reads no more while something that was read waits to be parsed."""

    unparsed = False

    def resume_reading(self) -> None:
        if not self.unparsed:
            super().resume_reading()


class LingeringConnection(HttpToolsProtocol):
    """A connection that is closed when the request that was answered has been read.

    It stands for the transport where a request's application writes and closes.
    """

    _receiving = False  # the body of a request has not ended
    _lingers = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.write, self.is_closing = transport.write, transport.is_closing

    def close(self) -> None:
        """Close, once the client has sent its request."""
        if self._receiving and not self._lingers and not self.transport.is_closing():
            self._linger()
        elif not self._lingers:
            self.transport.close()

    def shutdown(self) -> None:
        """Close, or do so after the answer to a request."""
        if self.cycle is not None and self.cycle.response_complete:
            self.close()
        else:
            super().shutdown()

    def _linger(self) -> None:
        self._lingers = True
        self.transport.write_eof()
        self._close_after(LINGER_SECONDS)

    def on_response_complete(self) -> None:
        if self._lingers:
            self.pipeline.clear()
        super().on_response_complete()
        if self._lingers:
            self._close_after(LINGER_SECONDS)

    def _close_after(self, seconds: float) -> None:
        """Close the connection if no head is complete by then; replaces the timeout before."""
        self._unset_keepalive_if_required()
        close = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(seconds, close)
