"""The server process: one socket, one event loop, graceful shutdown.

After SIGTERM or SIGINT the port stays open while the engine drains: /ready turns red, new work is
answered 503, /health still answers, and accepted requests finish within their deadlines and are
sent. Only then does the server close the connections. A second signal ends the process without
waiting.
"""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import uvicorn
import uvloop
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from s2sent.service.api.embedding import Service
from s2sent.service.app import create_app
from s2sent.service.engine.inference.model import LoadedModel
from s2sent.service.engine.types import EmbeddingEngine
from s2sent.service.http.connection.protocol import HttpConnection
from s2sent.service.process import stopped_by
from s2sent.service.settings import Settings

logger = logging.getLogger(__name__)

# After the drain what is left are bodies that never end and answers whose clients do not read them;
# the server waits so long for both.
SEND_TIMEOUT_SECONDS = 5
_POLL_SECONDS = 0.05


class CannotListen(Exception):
    """The address cannot be listened on; the message says why and what to do."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which close the port at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Process:
    """One run of the service, whose ``parts`` are arguments of `create_app`.

    ``exit_code`` is 0 unless it failed or had to give up on requests.
    """

    def __init__(self, settings: Settings, **parts: Any) -> None:
        self.exit_code = 0
        self._settings = settings
        self._app = create_app(settings, on_fatal=self.fail, **parts)
        service: Service = self._app.state.service
        self._engine: EmbeddingEngine = service.engine
        self._draining: asyncio.Task[None] | None = None
        self._server = _Server(
            uvicorn.Config(
                self._answer,
                interface="asgi3",  # it cannot be seen from a method
                http=HttpConnection,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing here asks for the client's address
                timeout_keep_alive=settings.keep_alive_seconds,
                timeout_graceful_shutdown=SEND_TIMEOUT_SECONDS,
            )
        )

    async def run(self, listener: socket.socket) -> None:
        """Serve until a signal, `stop` or a fatal error."""
        with stopped_by(self._on_signal):
            log_start(self._settings, listener)
            await self.serve(listener)
        logger.info("stopped", extra={"fields": {"exit_code": self.exit_code}})

    async def serve(self, listener: socket.socket) -> None:
        """Serve until `stop` or a fatal error."""
        await self._server.serve(sockets=[listener])
        if unsent := self._unsent():
            logger.error("%d answers were not sent: their clients did not read them", unsent)
            self.exit_code = 1

    def stop(self) -> None:
        """Finish what was accepted, and end; asked again, end without waiting."""
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain())
        else:
            self.exit_code = 1
            self._server.force_exit = self._server.should_exit = True

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application; while draining, each answer asks its client to open no new request.

        A request sent on a connection that is just being closed would be lost (RFC 9112, 9.6).
        """

        async def send_or_close(message: Message) -> None:
            if self._draining is not None and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, receive, send_or_close)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._draining is None:
            logger.info("draining", extra={"fields": {"signal": number.name}})
        self.stop()

    async def _drain(self) -> None:
        timeout_seconds = self._settings.drain_timeout_seconds
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_seconds
        try:
            if not await self._engine.drain(timeout_seconds):
                logger.error("requests were still unanswered after %g s", timeout_seconds)
                self.exit_code = 1
            while self._unsent() and loop.time() < end:
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self._server.should_exit = True

    def _unsent(self) -> int:
        """Connections with a part of an answer that the system has not taken yet."""
        open_now = self._server.server_state.connections
        return sum(1 for one in open_now if one.transport.get_write_buffer_size())

    def fail(self, reason: str) -> None:
        """End the process; may be called from any thread."""
        logger.critical(reason)
        self.exit_code = 1
        self._server.should_exit = True


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A socket bound to an address, where that is ``::`` for IPv4 too; raises CannotListen.

    With ``reuse_port`` several sockets share the address, and the system spreads connections over
    them (SO_REUSEPORT, socket(7)).
    """
    is_ipv6 = ":" in host
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
            backlog=2048,
            reuse_port=reuse_port,
            dualstack_ipv6=is_ipv6 and socket.has_dualstack_ipv6(),
        )
    except (OSError, UnicodeError) as error:  # the second for a name that no host can have
        known: dict[int | None, str] = {
            errno.EADDRINUSE: "it is taken. Stop what uses it, or set another port: --port 9000,"
            " or make serve PORT=9000.",
            errno.EACCES: "this user may not. Use a --port above 1023.",
            errno.EADDRNOTAVAIL: "this machine does not have it. Set another --host.",
        }
        # A name that cannot be resolved has a negative number, one of EAI_* (getaddrinfo(3)).
        if isinstance(error, UnicodeError) or (error.errno or 0) < 0:
            cure = "no address has this name. Set another --host."
        else:
            cure = known.get(error.errno, "it cannot be used. Set another --host.")
        raise CannotListen(f"Cannot listen on {host}:{port}: {cure}") from None


def listen_together(host: str, port: int, count: int) -> list[socket.socket]:
    """So many sockets that share an address nobody else has; raises CannotListen."""
    with listen(host, port) as alone:  # with reuse_port another service's address could be shared
        port = alone.getsockname()[1]
    return [listen(host, port, reuse_port=True) for _ in range(count)]


def log_start(settings: Settings, listener: socket.socket) -> None:
    """Log what the settings warn of, and the address of a socket: once for a service."""
    for warning in settings.warnings:
        logger.warning(warning)
    host, port = listener.getsockname()[:2]
    logger.info("listening", extra={"fields": {"host": host, "port": port}})


def greet(settings: Settings, listener: socket.socket) -> None:
    """Tell a person at a terminal where the service is; what is no terminal gets the log alone."""
    if not sys.stdout.isatty():
        return
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared, not bound
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    page = f", the playground {url}/playground" if settings.serves_playground else ""
    sys.stdout.write(f"S2Sent is at {url}{page}. Ctrl-C ends it.\n")
    sys.stdout.flush()


def serve(settings: Settings, model: Future[LoadedModel] | None = None) -> int:
    """Run the service until it ends; returns the exit code of the process.

    ``model`` is one that is being opened already.
    """
    with listen(settings.host, settings.port) as listener:
        greet(settings, listener)
        process = Process(settings, model=model)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(process.run(listener))
    return process.exit_code
