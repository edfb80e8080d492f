"""HTTP/1.1 connection handling: checks made before a request reaches the application.

Extends uvicorn's httptools protocol with a limit on the size and the time of a request's head,
error responses in the service's own envelope for bytes that are not HTTP, and the body of a request
that offers an upgrade (https://github.com/Kludex/uvicorn/issues/2722).
"""

import asyncio
import logging

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.errors import HeadTooLarge, MalformedRequest, ServiceError
from service.http.disconnect import DISCONNECT_STATE, DisconnectSignal
from service.http.error_responses import error_response
from service.http.middleware import REQUEST_ID_FIELD, new_request_id
from service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 65_536
# Key of the service's Metrics in the ASGI lifespan state.
METRICS_STATE = "metrics"
# Closing a connection while the client still sends resets it, and the client may lose the answer;
# the server reads on for this long.
LINGER_SECONDS = 2.0


class HttpConnection(HttpToolsProtocol):
    """One client connection. A head must be complete within uvicorn's keep-alive timeout."""

    _in_head = False
    _head_bytes = 0  # of the head, without those of the read it began in
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Start the keep-alive timeout, which also bounds the first head."""
        super().connection_made(transport)
        self._disconnect = DisconnectSignal()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the work of this client."""
        super().connection_lost(exc)
        self._disconnect.fire()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, whose callbacks below start requests."""
        if self._refused:
            return
        headers = self.headers  # every head gets a new list
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(_reason(error))
        else:
            if self._in_head and self.headers is headers:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._refuse(_head_too_large())

    # --- callbacks of the parser; an exception in one becomes HttpParserCallbackError ---

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self.scope["state"][DISCONNECT_STATE] = self._disconnect

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is parsed again without its upgrade."""
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            raise _head_too_large()
        if self.parser.get_method() == b"CONNECT":
            raise MalformedRequest("This is no proxy: CONNECT is not answered. See /docs.")
        if not self.parser.should_upgrade():
            self._unset_keepalive_if_required()
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the request's body; a request that offers an upgrade has not started yet."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    # --- refusals ---

    def _decline_upgrade(self, rest: bytes) -> None:
        """Parse the head again without its upgrade, which a server may ignore (RFC 9110, 7.8).

        httptools stops parsing HTTP where an upgrade begins, before the body.
        """
        line = b"%b %b HTTP/%b" % (
            self.parser.get_method(), self.url, self.parser.get_http_version().encode(),
        )  # fmt: skip
        fields = [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join([line, *fields, b"", rest]))

    def _refuse(self, error: ServiceError) -> None:
        """Answer bytes that are not a valid request, and ignore what follows on this connection.

        If a complete request is being answered, its response is sent instead.
        """
        self._refused = True
        logger.info("invalid request refused: %s", error.message)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            return
        metrics: Metrics | None = self.app_state.get(METRICS_STATE)
        if metrics:
            metrics.requests.labels("other", error.status).inc()
        self.transport.write(self._response(error))
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _response(self, error: ServiceError) -> bytes:
        response = error_response(getattr(self, "url", b"").decode("latin-1"), error)
        fields = [
            *self.server_state.default_headers,
            *response.raw_headers,
            (b"connection", b"close"),
            (REQUEST_ID_FIELD, new_request_id().encode()),
        ]
        head = b"".join(b"%b: %b\r\n" % field for field in fields)
        return STATUS_LINE[response.status_code] + head + b"\r\n" + bytes(response.body)


def _reason(error: httptools.HttpParserError) -> ServiceError:
    """The error raised by one of the callbacks above, or MalformedRequest."""
    if isinstance(error.__context__, ServiceError):
        return error.__context__
    return MalformedRequest("This is not HTTP/1.1. Send a request as RFC 9112 has it.")


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(
        f"The request's line and headers are above the limit of {MAX_HEAD_BYTES} bytes. "
        "Send less of them."
    )
