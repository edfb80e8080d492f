"""HTTP/1.1 connection handling: checks made before a request reaches the application.

Extends uvicorn's httptools protocol with a limit on the size and the time of a request's head, an
end of connections whose client reads no answer, error responses in the service's own envelope for
bytes that are not HTTP, and the body of a request that offers an upgrade
(https://github.com/Kludex/uvicorn/issues/2722).
"""

import asyncio
import logging

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from s2sent.service.errors import HeadTooLarge, MalformedRequest, ServiceError
from s2sent.service.http.disconnect import DISCONNECT_STATE, DisconnectSignal
from s2sent.service.http.error_responses import error_response
from s2sent.service.http.middleware import REQUEST_ID_FIELD, request_id_of
from s2sent.service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

HTTP_VERSIONS = ("1.0", "1.1")
MAX_HEAD_BYTES = 65_536
# Key of the service's Metrics in the ASGI lifespan state.
METRICS_STATE = "metrics"
# Closing a connection while the client still sends resets it, and the client may lose the answer;
# the server reads on for this long.
LINGER_SECONDS = 2.0


class HttpConnection(HttpToolsProtocol):
    """One client connection, for requests one after the other.

    Within uvicorn's keep-alive timeout a head must be complete, and some of a waiting answer read.
    """

    _in_head = False
    _head_bytes = 0  # of the head, without those of the read it began in
    _refused = False
    _answering: RequestResponseCycle | None = None  # the last request that the application got
    _reader_timeout: asyncio.TimerHandle | None = None  # set while an answer waits to be read

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
        if self._answering is not None:
            _give_up(self._answering)
        self._stop_expecting()
        self._disconnect.fire()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, whose callbacks below start requests."""
        while data and not self._refused:
            data = self._feed(data)

    def _feed(self, data: bytes) -> bytes:
        """Feed the parser; returns what it has to be fed next."""
        headers = self.headers  # every head gets a new list
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(_reason(error))
        else:
            if self._in_head and self.headers is headers:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._refuse(_head_too_large())
        return b""

    # --- answers that are not read ---

    def pause_writing(self) -> None:
        """An answer is larger than the socket takes: somebody has to read it."""
        super().pause_writing()
        self._expect_reader()

    def on_response_complete(self) -> None:
        """Go on with the next request, while the answer of this one is read."""
        super().on_response_complete()
        self._expect_reader()

    def _expect_reader(self) -> None:
        """Close the connection when its client reads nothing for the keep-alive timeout.

        The transport would keep the answer, also after `close`, until the last byte is sent.
        """
        self._stop_expecting()  # it counts from what is unread now
        if unread := self.transport.get_write_buffer_size():
            self._reader_timeout = self.loop.call_later(
                self.timeout_keep_alive, self._abort_unless_read, unread
            )

    def _abort_unless_read(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() >= unread:
            self.transport.abort()
        else:
            self._expect_reader()

    def _stop_expecting(self) -> None:
        if self._reader_timeout is not None:
            self._reader_timeout.cancel()
            self._reader_timeout = None

    # --- callbacks of the parser; an exception in one becomes HttpParserCallbackError ---

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self.scope["state"][DISCONNECT_STATE] = self._disconnect

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is parsed again without its upgrade."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:  # 4: a colon, a space and the end of the line
            raise _head_too_large()
        if (version := self.parser.get_http_version()) not in HTTP_VERSIONS:
            raise MalformedRequest(f"HTTP/{version} is not supported. Use HTTP/1.1.")
        if [name for name, _ in self.headers].count(b"host") > 1:  # RFC 9112, section 3.2
            raise MalformedRequest("The request has several Host headers. Send one.")
        if self.parser.get_method() == b"CONNECT":
            raise MalformedRequest("This is no proxy: CONNECT is not answered. See /docs.")
        self._in_head = False
        if not self.parser.should_upgrade():
            self._unset_keepalive_if_required()
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the request's body; a request that offers an upgrade has not started yet."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    # --- refusals ---

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The head again without its upgrade, which a server may ignore (RFC 9110, 7.8).

        httptools stops parsing HTTP where an upgrade begins, before the body.
        """
        line = b"%b %b HTTP/%b" % (
            self.parser.get_method(), self.url, self.parser.get_http_version().encode(),
        )  # fmt: skip
        fields = [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn
        return b"\r\n".join([line, *fields, b"", rest])

    def _refuse(self, error: ServiceError) -> None:
        """Answer bytes that are not a valid request, and ignore what follows on this connection.

        If complete requests wait for their answers, the last of these ends the connection instead.
        """
        self._refused = True
        broken = self._unended()
        request_id = request_id_of(dict(self.headers or ()))  # none before the first byte
        fields = {"request_id": request_id, "status": error.status}
        logger.info("invalid request refused: %s", error.message, extra={"fields": fields})
        if broken is not None and self.pipeline:
            self.pipeline.popleft()  # the newest is on the left
        last = self.pipeline[0][0] if self.pipeline else self._answering
        if last is not None and last is not broken and not last.response_complete:
            last.keep_alive = False
            return
        if broken is not None:
            _give_up(broken)
        if broken is not None and broken.response_started:
            self.transport.close()  # the client waits for the rest of an answer
            self._expect_reader()
            return
        metrics: Metrics | None = self.app_state.get(METRICS_STATE)
        if metrics:
            metrics.requests.labels("other", error.status).inc()
        self.transport.write(self._response(error, request_id))
        self.transport.write_eof()
        self._expect_reader()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _unended(self) -> RequestResponseCycle | None:
        """The newest request, if its body has not ended and no answer to it has."""
        newest: RequestResponseCycle | None = self.cycle
        if newest is None or newest.response_complete or not newest.more_body:
            return None
        return newest

    def _response(self, error: ServiceError, request_id: str) -> bytes:
        response = error_response(_path_of(self.url or b""), error)
        fields = [
            *self.server_state.default_headers,
            *response.raw_headers,
            (b"connection", b"close"),
            (REQUEST_ID_FIELD, request_id.encode()),
        ]
        head = b"".join(b"%b: %b\r\n" % field for field in fields)
        return STATUS_LINE[response.status_code] + head + b"\r\n" + bytes(response.body)


def _path_of(target: bytes) -> str:
    """The path of a request target, empty where it has none or is cut off."""
    try:
        path: bytes | None = httptools.parse_url(target).path
    except httptools.HttpParserInvalidURLError:
        path = None
    return (path or b"").decode("latin-1")


def _give_up(cycle: RequestResponseCycle) -> None:
    """Tell the application that the client of its request is gone."""
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


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
