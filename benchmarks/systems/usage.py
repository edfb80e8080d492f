"""What a process and its children use: memory and processor time, as Linux counts them."""

import os
import resource
import time
from typing import Self

import psutil

IDLE = ("idle", "iowait", "guest", "guest_nice")  # guest time is counted in user time too


def memory_mb(process: psutil.Process) -> dict[str, float]:
    """Resident MB of the tree, as ``pss`` and ``rss``.

    A page that n processes share counts 1/n in each one's PSS, and whole in each one's RSS.
    """
    members = [member.memory_full_info() for member in _tree(process)]
    return {
        "pss": sum(member.pss for member in members) / 1e6,
        "rss": sum(member.rss for member in members) / 1e6,
    }


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time of the tree since it started, user and system, ended children included."""
    return sum(sum(member.cpu_times()[:4]) for member in _tree(process))


class Others:
    """What a block's time on the cores went to besides a system and this program's children.

    ``share`` is that of all cores' time: other programs, and what a hypervisor gave to others.
    """

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.share = 0.0

    def __enter__(self) -> Self:
        self._busy, self._own, self._started = _busy_seconds(), self._count_own(), _now()
        return self

    def __exit__(self, *_: object) -> None:
        others = (_busy_seconds() - self._busy) - (self._count_own() - self._own)
        elapsed = max(1e-9, _now() - self._started)
        share = others / (elapsed * (os.cpu_count() or 1))
        self.share = min(1.0, max(0.0, share))  # the kernel counts in ticks of some milliseconds

    def _count_own(self) -> float:
        """Of the system, and of what was started and has ended, such as wrk."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cpu_seconds(self._process) + ended.ru_utime + ended.ru_stime


def _busy_seconds() -> float:
    times = psutil.cpu_times()._asdict()
    return float(sum(value for name, value in times.items() if name not in IDLE))


def _now() -> float:
    return time.perf_counter()


def _tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]
