"""HTTP/1.1 connection handling: checks made before a request reaches the application.

Extends uvicorn's httptools protocol with limits on the size and the time of a request's head and on
what is neither head nor body, an end of connections whose client reads no answer, error responses
in the service's own envelope for bytes that are not HTTP, and the body of a request that offers an
upgrade (https://github.com/Kludex/uvicorn/issues/2722).

pyproject.toml pins uvicorn's minor version, because none of what is used here is documented: of
`HttpToolsProtocol` ``_start_asgi_task``, ``_unset_keepalive_if_required``, ``app_state``,
``cycle``, ``flow``, ``headers``, ``loop``, ``parser``, ``pipeline``, ``scope``, ``server_state``,
``timeout_keep_alive``, ``timeout_keep_alive_handler``, ``timeout_keep_alive_task``, ``transport``,
``url``; of `RequestResponseCycle` ``body``, ``disconnected``, ``keep_alive``, ``message_event``,
``more_body``, ``response_complete``, ``response_started``, ``transport``; `FlowControl`;
`STATUS_LINE`. A new version is read for these before the pin is moved.
"""

import asyncio
import logging

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from s2sent.service.errors import InternalError, ServiceError
from s2sent.service.http.connection.lingering import LingeringConnection, OrderedFlow
from s2sent.service.http.connection.malformed import (
    MAX_HEAD_BYTES,
    check_head,
    head_too_large,
    path_of,
    reason_of,
    surplus_too_large,
)
from s2sent.service.http.context import ABORT_STATE
from s2sent.service.http.error_responses import error_response
from s2sent.service.http.middleware import REQUEST_ID_FIELD, request_id_of
from s2sent.service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

# What is read is parsed in pieces of this size, so that a read of many small requests does not
# become thousands of waiting ones.
PARSED_BYTES = 8_192
# Key of the service's Metrics in the ASGI lifespan state.
METRICS_STATE = "metrics"
# A head must be complete, and some of a waiting answer read, within this time, or within the
# keep-alive timeout where that is shorter.
PATIENCE_SECONDS = 75


class HttpConnection(LingeringConnection):
    """One client connection, for requests one after the other."""

    flow: OrderedFlow
    url = b""  # before the first request
    _in_head = False
    _ended = False  # the last byte of a request was parsed, and its application not told so
    _surplus = 0  # bytes that came since the last request and are neither its head nor its body
    _chunk = 0  # bytes of the chunk of a body
    _unparsed = b""  # read, and waiting for the answers to the requests before it
    _refused = False
    _answering: RequestResponseCycle | None = None  # the last request that the application got
    _reader_timeout: asyncio.TimerHandle | None = None  # set while an answer waits to be read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Start the keep-alive timeout, which also bounds the first head."""
        super().connection_made(transport)
        self.flow = OrderedFlow(transport)
        self._patience = min(self.timeout_keep_alive, PATIENCE_SECONDS)
        self._close_after(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn does so after a clean close only
        if self._answering is not None:
            _give_up(self._answering)
            self._forget_answered()
        self._stop_expecting()
        self._unparsed = b""

    def data_received(self, data: bytes) -> None:
        """Feed the parser, whose callbacks below start requests."""
        self._unparsed = self._unparsed + data if self._unparsed else data
        self._parse()

    def _parse(self) -> None:
        """Parse what was read, until a request has to wait for the answer to another."""
        data, parsed = self._unparsed, 0
        while parsed < len(data) and not self.pipeline and not self._refused:
            piece = data[parsed : parsed + PARSED_BYTES]
            parsed += len(piece)
            while piece and not self._refused:
                piece = self._feed(piece)
        self._unparsed = b"" if self._refused else data[parsed:]
        self.flow.unparsed = bool(self._unparsed)
        if self._unparsed:
            self.flow.pause_reading()

    def _feed(self, data: bytes) -> bytes:
        """Feed the parser; returns what it has to be fed next."""
        self._surplus += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            self._surplus -= len(rest)
            return self._without_upgrade(rest)
        except httptools.HttpParserError as error:
            self._end_message()
            self._refuse(reason_of(error))
        else:
            if self._surplus > MAX_HEAD_BYTES:
                self._refuse(head_too_large() if self._in_head else surplus_too_large())
            else:
                self._end_message()
        return b""

    # --- answers that are not read ---

    def pause_writing(self) -> None:
        """An answer is larger than the socket takes: somebody has to read it."""
        super().pause_writing()
        self._expect_reader()

    def on_response_complete(self) -> None:
        """Go on with the next request, while the answer of this one is read."""
        if self._answering is not None:  # an idle connection keeps nothing of a request
            self._answering.body = bytearray()
            self._forget_answered()
        super().on_response_complete()
        self._expect_reader()
        if self._unparsed and not self.transport.is_closing():
            self._parse()
            if not self.pipeline:
                self.flow.resume_reading()

    def _forget_answered(self) -> None:
        self._answering.transport = self.transport  # type: ignore[union-attr]  # no cycle is left
        self._answering = None

    def _expect_reader(self) -> None:
        """Close the connection when its client reads nothing for a while.

        The transport would keep the answer, also after `close`, until the last byte is sent.
        """
        self._stop_expecting()  # it counts from what is unread now
        if unread := self.transport.get_write_buffer_size():
            abort = self._abort_unless_read
            self._reader_timeout = self.loop.call_later(self._patience, abort, unread)

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
        self._end_message()
        super().on_message_begin()
        self._in_head, self._chunk = True, 0
        self.scope["state"][ABORT_STATE] = self.transport.abort
        if self._patience < self.timeout_keep_alive and self.timeout_keep_alive_task is not None:
            self._close_after(self._patience)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers are dropped (RFC 9110, 6.5.1)."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is parsed again without its upgrade."""
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:  # 4: a colon, a space and the end of the line
            raise head_too_large()
        method = self.parser.get_method()
        self._surplus -= len(method) + size + len("  HTTP/1.1\r\n\r\n")
        check_head(self.parser, self.url, self.headers)
        if not self.parser.should_upgrade() and not self._lingers:
            self._receiving = True
            self._unset_keepalive_if_required()
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._surplus -= len(body)
        self._chunk += len(body)
        super().on_body(body)

    def on_chunk_complete(self) -> None:
        """Leave out what a chunk needs: its size in hexadecimal digits and two ends of lines."""
        self._surplus -= len(f"{self._chunk:x}\r\n\r\n")
        self._chunk = 0

    def on_message_complete(self) -> None:
        """Note the end of a request; one that offers an upgrade has not started yet."""
        self._ended = not self.parser.should_upgrade()

    def _end_message(self) -> None:
        """Tell the application that its request's body is complete, if it is."""
        if self._ended:
            self._ended = self._receiving = False
            self._surplus = 0
            super().on_message_complete()
            if self._lingers:
                self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        cycle.transport = self  # type: ignore[assignment]  # of which it needs what this has
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
        if self._lingers:
            return
        broken = self._unended()
        request_id = request_id_of(dict(self.headers or ()))  # none before the first byte
        fields = {"request_id": request_id, "status": error.status}
        if isinstance(error, InternalError):
            message = "unhandled error while a request was parsed"
            logger.error(message, exc_info=error.__cause__, extra={"fields": fields})
        else:
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
        self._linger()
        self._expect_reader()

    def _unended(self) -> RequestResponseCycle | None:
        """The newest request, if its body has not ended and no answer to it has."""
        newest: RequestResponseCycle | None = self.cycle
        if newest is None or newest.response_complete or not newest.more_body:
            return None
        return newest

    def _response(self, error: ServiceError, request_id: str) -> bytes:
        response = error_response(path_of(self.url), error)
        fields = [
            *self.server_state.default_headers,
            *response.raw_headers,
            (b"connection", b"close"),
            (REQUEST_ID_FIELD, request_id.encode()),
        ]
        head = b"".join(b"%b: %b\r\n" % field for field in fields)
        return STATUS_LINE[response.status_code] + head + b"\r\n" + bytes(response.body)


def _give_up(cycle: RequestResponseCycle) -> None:
    """Tell the application that the client of its request is gone."""
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()
