"""The engine process of several: it has queue and model, takes signals, and tends HTTP processes.

Each HTTP process has a listening socket of its own on the one address, so that the system spreads
connections evenly; this process holds them too, so that connections wait while one is replaced.
After SIGTERM all finish what they have accepted; this process ends last. Where it ends first, they
end with it.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import uvloop
from pydantic import SecretStr

import s2sent
from s2sent.service.access.auth import ApiKeys
from s2sent.service.access.rate_limits import RateLimiter, key_of
from s2sent.service.app import start_engine
from s2sent.service.engine.base import STOP_TIMEOUT_SECONDS
from s2sent.service.engine.engine import Engine
from s2sent.service.engine.inference.model import LoadedModel
from s2sent.service.engine.link.board import Board
from s2sent.service.engine.link.client import BEAT_SECONDS
from s2sent.service.engine.link.server import HttpProcessConnection, LinkServer, model_payload
from s2sent.service.engine.types import Readiness
from s2sent.service.http.tracing import check_packages
from s2sent.service.process import stopped_by
from s2sent.service.server import SEND_TIMEOUT_SECONDS, greet, listen_together, log_start
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics
from s2sent.service.telemetry.processes import Reports, name_of

logger = logging.getLogger(__name__)

MODULE = "s2sent.service.http_process"
CODE = Path(s2sent.__file__).parents[1]  # where the module is that belongs to this code
WATCH_SECONDS = 0.1
MAX_FAILED_STARTS = 3  # in a row, of a process that served before
START_TIMEOUT_SECONDS = 60.0
FAILED_TIMEOUT_SECONDS = 4.0  # for HTTP processes to end after the engine has failed
# An HTTP process that takes no answers is replaced after so long where they take so much memory.
UNREAD_SECONDS = 5.0
MAX_UNREAD_BYTES = 67_108_864


class Supervisor:
    """One run of the engine process; ``exit_code`` is 0 unless something failed or was given up."""

    def __init__(
        self, settings: Settings, processes: int, model: Future[LoadedModel] | None = None
    ) -> None:
        self.exit_code = 0
        self._settings = settings
        self._count = processes
        self._metrics = Metrics()
        self._limiter = RateLimiter(self._metrics)
        self._reports = Reports(self._metrics)
        self._engine = Engine(settings, self._metrics, model=model, on_fatal=self._fail)
        self._board_file = os.memfd_create("s2sent-board")
        os.ftruncate(self._board_file, Board.size(processes))
        self._board = Board.of(self._board_file, processes)
        self._link = LinkServer(self._engine, self._board, answer=self._answer)
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._ready: set[int] = set()  # processes that serve
        self._ending = asyncio.Event()
        self._grace_seconds = (
            settings.drain_timeout_seconds + SEND_TIMEOUT_SECONDS + 2 * STOP_TIMEOUT_SECONDS
        )

    async def run(self, listeners: list[socket.socket]) -> None:
        """Serve until `on_signal` is called or a fatal error."""
        loop = asyncio.get_running_loop()
        log_start(self._settings, listeners[0])
        tending = [loop.create_task(self._tend(*each)) for each in enumerate(listeners)]
        starting = start_engine(self._engine, self._on_engine_ready, self._fail)
        others = [loop.create_task(starting), loop.create_task(self._watch())]
        await self._ending.wait()
        for listener in listeners:  # an HTTP process closes the port when it has finished
            listener.close()
        _, left = await asyncio.wait(tending, timeout=self._grace_seconds)
        if left:
            logger.error("%d HTTP processes had to be killed", len(left))
            self.exit_code = 1
            self._kill()
            await asyncio.wait(left)
        for task in others:
            task.cancel()
        await asyncio.wait(others)
        await self._engine.drain(0)
        logger.info("stopped", extra={"fields": {"exit_code": self.exit_code}})

    def _on_engine_ready(self) -> None:
        self._link.describe(model_payload(self._engine.artifact, self._engine.model))

    # --- HTTP processes ---

    async def _tend(self, process: int, listener: socket.socket) -> None:
        """Keep an HTTP process running until the end."""
        failed_starts = 0
        served = False
        while True:
            try:
                code = await self._run(process, listener)
            except OSError as error:  # no process, memory or descriptor is left for it
                reason = error.strerror
                logger.error("HTTP process %s cannot be started: %s", name_of(process), reason)
                await asyncio.sleep(BEAT_SECONDS)
                code = 1
            was_ready = process in self._ready
            self._ready.discard(process)
            if self._ending.is_set():
                self.exit_code = self.exit_code or int(code != 0)
                return
            self._link.set_state(self._readiness())
            served, failed_starts = served or was_ready, 0 if was_ready else failed_starts + 1
            name, fields = name_of(process), {"fields": {"exit_code": code}}
            if failed_starts >= (MAX_FAILED_STARTS if served else 1):
                self._fail(
                    f"HTTP process {name} cannot start: it ended with exit code {code} before it"
                    " served. The lines above say why."
                )
                return
            logger.error("HTTP process %s ended and is started again", name, extra=fields)
            self._metrics.http_restarts.inc()

    async def _run(self, process: int, listener: socket.socket) -> int:
        """Run an HTTP process until it ends; returns its exit code, negative for a signal."""
        own, its = socket.socketpair()
        connection = HttpProcessConnection(
            self._link,
            process,
            on_ready=partial(self._ready.add, process),
            on_samples=lambda report, asked: self._reports.take(process, report, asked=asked),
        )
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=own)
        try:
            with its:
                if self._ending.is_set():  # the listener is closed
                    return 0
                child = await self._spawn(process, listener.fileno(), its.fileno())
            self._children[process] = child
            with suppress(RuntimeError):  # uvloop's, where it has ended already
                await child.communicate(settings_as_json(self._settings))
            return await child.wait()
        finally:
            self._children.pop(process, None)
            connection.close()
            self._board.set_in_flight(process, 0)
            self._reports.end(process)

    async def _spawn(self, process: int, *descriptors: int) -> asyncio.subprocess.Process:
        descriptors = *descriptors, self._board_file
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", MODULE),
            *map(str, (process, self._count, os.getpid(), *descriptors)),
            stdin=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, _search_path()))},
            pass_fds=descriptors,
            start_new_session=True,  # a terminal's Ctrl-C is for this process
        )

    async def _watch(self) -> None:
        """Tell all whether the service is ready, and replace processes that do nothing."""
        was_ready, watched = False, time.monotonic()
        while True:
            readiness = self._readiness()
            if not self._ending.is_set():
                self._link.set_state(readiness)
            self._link.publish()
            if readiness.ready and not was_ready:
                was_ready = True
                logger.info("ready")
            now = time.monotonic()
            if now - watched < BEAT_SECONDS:  # else this process did nothing itself
                self._replace_stalled(now)
            else:
                for connection in self._link.connections.values():
                    connection.heard = now
            watched = now
            await asyncio.sleep(WATCH_SECONDS)

    def _readiness(self) -> Readiness:
        readiness = self._engine.readiness()
        missing = [name_of(one) for one in range(self._count) if one not in self._ready]
        if readiness.ready and missing:
            return Readiness(False, f"HTTP process {missing[0]} is being started")
        return readiness

    def _replace_stalled(self, now: float) -> None:
        for process, connection in list(self._link.connections.items()):
            silent = now - connection.heard
            limit = max(self._settings.stall_timeout_seconds, 3 * BEAT_SECONDS)
            if process not in self._ready:
                limit = START_TIMEOUT_SECONDS
            elif connection.unsent_bytes > MAX_UNREAD_BYTES:
                limit = min(limit, UNREAD_SECONDS)
            if silent > limit and (child := self._children.get(process)):
                logger.error("HTTP process %s did nothing for %.0f s", name_of(process), silent)
                connection.close()
                _kill(child)

    def _kill(self) -> None:
        for child in self._children.values():
            _kill(child)

    # --- what HTTP processes ask ---

    async def _answer(self, question: Any) -> Any:
        kind, *details = question
        if kind == "metrics":
            return await self._reports.collect(self._link.collect)
        key, *tokens = details
        return await getattr(self._limiter, kind)(key_of(key), *tokens)  # admit or charge

    # --- the end ---

    def on_signal(self, number: signal.Signals) -> None:
        """Finish what was accepted, and end; called again, end without waiting."""
        if self._ending.is_set():
            self.exit_code = 1
            self._kill()
            return
        logger.info("draining", extra={"fields": {"signal": number.name}})
        self._link.stop()
        self._ending.set()

    def _fail(self, reason: str) -> None:
        """End all processes; what waits is answered 503."""
        logger.critical(reason)
        self.exit_code = 1
        self._grace_seconds = min(self._grace_seconds, FAILED_TIMEOUT_SECONDS)
        self._link.set_state(Readiness(False, reason), failed=True)
        self._ending.set()


def _kill(child: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # it has ended, which is not known yet
        child.kill()


def _search_path() -> list[object]:
    """Where Python looks for modules before its own: not in the working directory."""
    return [CODE, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def settings_as_json(settings: Settings) -> bytes:
    """All settings, secrets too: for the eyes of a process of the same user."""

    def plain(value: object) -> object:
        return value.get_secret_value() if isinstance(value, SecretStr) else str(value)

    return orjson.dumps(settings.model_dump(), default=plain)


def serve_processes(
    settings: Settings, processes: int, model: Future[LoadedModel] | None = None
) -> int:
    """Run the service with several HTTP processes until it ends; returns the exit code.

    ``model`` is one that is being opened already. Raises SettingsError
    and CannotListen.
    """
    ApiKeys.of(settings)
    check_packages(settings)
    listeners = listen_together(settings.host, settings.port, processes)
    greet(settings, listeners[0])

    async def run() -> int:
        supervisor = Supervisor(settings, processes, model)
        with stopped_by(supervisor.on_signal):
            await supervisor.run(listeners)
        return supervisor.exit_code

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())
