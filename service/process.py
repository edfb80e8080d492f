"""How the process of the ``serve`` command is tuned and ends; library code changes nothing of it.

Imports the standard library only: the tuning has to be in place before numpy is imported.
"""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# Containers created, less those freed, before Python looks for reference cycles. Requests leave
# none, whatever their answer, so this is for what nobody thought of: up to some 30 MB. A waiting
# request has 60 containers, and to look through those of a thousand holds up all others for 60 ms
# and more: at 10,000 a refusal's p99 was four times as long (benchmarks/journal/2026-11-27-amd.md).
GARBAGE_THRESHOLDS = (200_000, 10, 10)

FLUSH_TIMEOUT_SECONDS = 1.0


def tune_process() -> None:
    """Prepare the process. Call it before anything heavy is imported."""
    # Ctrl-C ends the process as SIGTERM does; Python's own handler raises wherever it is.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    # numpy only adds and compares here. Its BLAS would start a thread per core, which spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@contextmanager
def stopped_by(on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call ``on_signal`` on the running event loop at each signal that asks for the end.

    `asyncio.loop.add_signal_handler` leaves SIGINT with Python's own handler, which raises
    KeyboardInterrupt in whatever comes after the loop; here signals get back what they had.
    """
    loop = asyncio.get_running_loop()

    def hand_on(number: int, _frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(on_signal, signal.Signals(number))

    before = {number: signal.signal(number, hand_on) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_process(code: int) -> NoReturn:
    """End the process, at once where a thread is still at work, as while a model is being opened.

    Python would end a daemon thread as it comes back from native code, and the runtime's C++
    answers that with SIGABRT (https://github.com/python/cpython/issues/87135).
    """
    if any(thread.daemon for thread in threading.enumerate()):
        flushing = threading.Thread(target=_flush, name="flush", daemon=True)
        with suppress(RuntimeError):  # no thread can be started
            flushing.start()
            flushing.join(FLUSH_TIMEOUT_SECONDS)
        os._exit(code)
    sys.exit(code)


def _flush() -> None:
    """Flush what the process prints to, which waits where nobody reads it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
