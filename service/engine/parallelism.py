"""How the CPU cores are divided between threads: counting, runs side by side, pinning.

In a container the host's number of cores is the wrong one: a session with 64 threads under a quota
of two cores is throttled most of the time.

Pinning: on a virtual machine Linux takes a core that sleeps for one that the host has taken away,
and puts two woken threads on the core that is awake, until it balances the load some milliseconds
later. A short text's run then takes twice as long. Threads pinned to cores of their own are not put
together.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from service.settings import Settings

CGROUP_MOUNT = "sys/fs/cgroup"

# More cores than this wait for memory. On a GPU one batch is prepared while another runs.
MAX_CONCURRENT_RUNS = {"cpu": 16, "gpu": 2}


@dataclass(frozen=True)
class Parallelism:
    """Threads of an exclusive run, the number of runs side by side, and the cores for pinning."""

    threads: int
    concurrent_runs: int
    cpus: tuple[int, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """What the settings say; for each 0 a number that suits the cores there are."""
        threads = settings.threads or usable_cpus()
        most = min(threads, MAX_CONCURRENT_RUNS[settings.processor])
        runs = settings.concurrent_runs or most
        # With fewer runs than cores, two pinned threads could get the halves of one core.
        fits = settings.processor == "cpu" and runs in (1, threads)
        cpus = own_cpus(threads) if settings.pin_threads and fits else ()
        return cls(threads, runs, cpus)


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the cores left by the affinity mask and the cgroup quota, at least 1.

    A quota of 2.5 cores gives 2: a third thread would only be throttled, and threads that work
    in step wait for the slowest. ``root`` is the file system's root; tests give another one.
    """
    quotas = [int(quota) for quota in (*_quotas_v2(root), *_quotas_v1(root))]
    return max(1, min([_affinity(), *quotas]))


def own_cpus(threads: int, root: Path = Path("/")) -> tuple[int, ...]:
    """Return the number of a core for each of ``threads`` threads, or none at all.

    Only where the threads are as many as the cores and no quota is lower: elsewhere other processes
    use the same cores, and each would choose the same ones.
    """
    if threads < 2 or threads != usable_cpus(root) or not hasattr(os, "sched_setaffinity"):
        return ()
    cpus = sorted(os.sched_getaffinity(0))
    return tuple(cpus) if len(cpus) == threads else ()


class CorePin:
    """The core of one inference thread: ``cpus[place]``, and the first for an exclusive run.

    An exclusive run has the session's threads beside it, which are pinned to the other cores
    (`model.runtime.sessions`). Without ``cpus`` the thread is not pinned.
    """

    def __init__(self, cpus: Sequence[int], place: int) -> None:
        self._cpus = cpus
        self._place = place
        self._pinned: int | None = None

    def pin(self, *, exclusive: bool) -> None:
        """Pin the calling thread, unless it is there already."""
        if not self._cpus:
            return
        cpu = self._cpus[0 if exclusive else self._place % len(self._cpus)]
        if cpu == self._pinned:
            return
        try:
            os.sched_setaffinity(0, (cpu,))  # 0 is the calling thread
            self._pinned = cpu
        except OSError:  # the core was taken away from this process
            self._cpus = ()


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas_v2(root: Path) -> Iterator[float]:
    """Yields cores per ``cpu.max`` (https://docs.kernel.org/admin-guide/cgroup-v2.html)."""
    for folder in _cgroup_folders(root, controller="", mount=CGROUP_MOUNT):
        fields = _read(folder / "cpu.max").split()
        if len(fields) == 2 and fields[0] != "max":
            yield int(fields[0]) / int(fields[1])


def _quotas_v1(root: Path) -> Iterator[float]:
    """Yields cores per ``cpu.cfs_quota_us`` (kernel documentation, scheduler/sched-bwc)."""
    for folder in _cgroup_folders(root, controller="cpu", mount=f"{CGROUP_MOUNT}/cpu"):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota and period and int(quota) > 0:  # -1 is no quota
            yield int(quota) / int(period)


def _cgroup_folders(root: Path, *, controller: str, mount: str) -> Iterator[Path]:
    """Yields the process' cgroup and all above it: the tightest quota of them counts.

    In a container the path is often the host's and not to be found under the mount, whose own
    folder is then the container's cgroup; that is yielded last in any case.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            own = Path(path.lstrip("/"))
            for folder in (own, *own.parents):
                yield root / mount / folder


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
