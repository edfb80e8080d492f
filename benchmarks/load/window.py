"""One cell of a table: warm up at the load, wait until the server is idle, then time the load.

A library in process is warmed up and timed in the same way; it has nothing to finish in between.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.closed_loop import Load, run_calls, run_load
from benchmarks.load.idle import wait_until_idle
from benchmarks.load.texts import Texts
from benchmarks.systems.running import NotMeasured, Running
from benchmarks.systems.usage import Others


@dataclass(frozen=True)
class Window:
    """How long a load is timed.

    At least ``seconds``, and as much longer as it takes to get ``answers`` answers, up to
    ``most_seconds``.
    """

    seconds: float = 15
    answers: int = 200
    most_seconds: float = 60
    warm_up_seconds: float = 2

    def seconds_at(self, answers_per_second: float) -> float:
        """The length for a system that answers so fast, with a tenth to spare."""
        needed = 1.1 * self.answers / answers_per_second
        return min(self.most_seconds, max(self.seconds, needed))

    def is_long_enough(self, figures: Mapping[str, Any], seconds: float) -> bool:
        """Whether a window of ``seconds`` has its answers, or cannot be any longer."""
        return bool(figures["answers"] >= self.answers or seconds >= self.most_seconds)

    def seconds_after(self, figures: Mapping[str, Any], seconds: float) -> float:
        """The next length after one of ``seconds`` in which the system was slower than at first.

        It is timed again: to leave its slow windows out would make a system look faster.
        """
        longer = min(self.most_seconds, 1.2 * seconds)
        return max(longer, self.seconds_at(figures["answers"] / figures["seconds"]))


def run_window(
    running: Running, load: Load, bodies: Path, idle_ms: float, window: Window
) -> dict[str, float]:
    """The figures of `run_load`, and how long the server took to become idle.

    Raises `NotMeasured` when the server does not become idle or has answered too few requests.
    """
    rate = _warm_up(running, load, bodies, window)

    def run(seconds: float) -> dict[str, Any]:
        waited = wait_until_idle(running, idle_ms)
        with Others(running.process) as others:
            figures = run_load(running, load, bodies, seconds)
        return figures | {"waited_seconds": waited, "others_share": others.share}

    return _timed(run, rate, load, window)


def _warm_up(running: Running, load: Load, bodies: Path, window: Window) -> float:
    """Load until something is answered, up to ``most_seconds``; returns answers a second."""
    seconds = window.warm_up_seconds
    while True:
        try:
            figures = run_load(running, load, bodies, seconds)
            return figures["answers"] / figures["seconds"]
        except NotMeasured:
            if seconds >= window.most_seconds:
                raise
            seconds = min(4 * seconds, window.most_seconds)


def call_window(running: Running, load: Load, texts: Texts, window: Window) -> dict[str, Any]:
    """The figures of `run_calls`. Raises `NotMeasured` when there were too few calls."""
    warm_up = run_calls(running, load, texts, window.warm_up_seconds)

    def run(seconds: float) -> dict[str, Any]:
        with Others(running.process) as others:
            figures = run_calls(running, load, texts, seconds)
        return figures | {"others_share": others.share}

    return _timed(run, warm_up["answers"] / warm_up["seconds"], load, window)


def _timed(
    run: Callable[[float], dict[str, Any]], rate: float, load: Load, window: Window
) -> dict[str, Any]:
    """The figures of the first window that has its answers; a shorter one is timed again, longer.

    ``rate`` is the system's in its warm-up, in answers a second. Raises `NotMeasured` when even
    the longest window has too few.
    """
    seconds = window.seconds_at(rate)
    while not window.is_long_enough(figures := run(seconds), seconds):
        seconds = window.seconds_after(figures, seconds)
    if figures["answers"] < window.answers:
        raise NotMeasured(
            f"{figures['answers']:.0f} answers in {figures['seconds']:.0f} s at {load.label};"
            f" a cell needs {window.answers}."
        )
    return figures
