"""One of several HTTP processes: everything of the service but the queue and the model.

`service.supervisor` starts it with the socket it listens on, the one to the engine process and the
memory they share; the settings come as JSON on standard input. It takes no signals: the engine
process says when to stop, and with that process it ends.
"""

import asyncio
import ctypes
import os
import signal
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING

from s2sent.service.process import end_process, tune_process

if TYPE_CHECKING:
    from s2sent.service.settings import Settings

PR_SET_PDEATHSIG = 1  # prctl(2)


def main(process: int, processes: int, parent: int, *descriptors: int) -> int:
    """Serve until the engine process says so or ends; returns the exit code.

    ``descriptors`` are those of the listening socket, of the engine process's and of the board.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        return 1
    tune_process()
    import uvloop

    from s2sent.service.settings import Settings, SettingsError
    from s2sent.service.telemetry.logs import logging_to
    from s2sent.service.telemetry.processes import name_of
    from s2sent.service.threads import NoMoreThreads

    settings = share_of(Settings.model_validate_json(sys.stdin.buffer.read()), processes)
    try:
        with (
            logging_to(sys.stdout, settings.log_level, process=name_of(process)),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_serve(settings, process, processes, *descriptors))
    except NoMoreThreads as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except SettingsError as error:  # such as for a file of keys that has changed
        sys.stderr.write(f"{error}\n")
        return 2


def share_of(settings: "Settings", processes: int) -> "Settings":
    """The settings of one process, which has its share of the memory for bodies and answers."""
    limits = {
        "max_held_body_bytes": settings.max_held_body_bytes // processes,
        "max_unsent_bytes": settings.max_unsent_bytes // processes,
    }
    return settings.model_copy(update=limits)


async def _serve(
    settings: "Settings", process: int, processes: int, listener: int, link: int, board: int
) -> int:
    from s2sent.service.access.rate_limits import RemoteLimiter
    from s2sent.service.engine.link.board import Board
    from s2sent.service.engine.link.client import EngineConnection, RemoteEngine
    from s2sent.service.server import Process
    from s2sent.service.telemetry.metrics import Metrics
    from s2sent.service.telemetry.processes import Merged, report_of

    metrics = Metrics()
    connection = EngineConnection(
        Board.of(board, processes),
        process,
        max_queue_tokens=settings.max_queue_tokens,
        samples=partial(report_of, metrics),
    )
    engine = RemoteEngine(settings, metrics, connection)
    limiter = RemoteLimiter(connection.call)
    server = Process(settings, engine=engine, metrics=metrics, limiter=limiter)
    connection.on_stop, engine.on_fatal = server.stop, server.fail

    async def gather() -> Merged:
        return Merged(await connection.call(["metrics"]))

    metrics.gather = gather
    with socket.socket(fileno=link) as end:
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=end)
        await server.serve(socket.socket(fileno=listener))
    return server.exit_code


if __name__ == "__main__":
    end_process(main(*map(int, sys.argv[1:])))
