"""How the CPU cores are divided between threads: counting, and runs side by side.

In a container the host's number of cores is the wrong one: a session with 64 threads under a quota
of two cores is throttled most of the time.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from s2sent.service.settings import Settings, SettingsError

CGROUP_MOUNT = "sys/fs/cgroup"

# More cores than this wait for memory. On a GPU `model.runtime.encoder` runs one after another.
MAX_CONCURRENT_RUNS = {"cpu": 16, "gpu": 1}

# Where the number of HTTP processes is chosen: cores left to the engine process, and the most.
ENGINE_CORES = 2
MOST_HTTP_PROCESSES = 12


@dataclass(frozen=True)
class Parallelism:
    """Threads of a run by itself, and the number of runs side by side."""

    threads: int
    concurrent_runs: int

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """What the settings say; for each 0 a number that suits the cores there are."""
        threads = settings.threads or usable_cpus()
        most = min(threads, MAX_CONCURRENT_RUNS[settings.processor])
        runs = settings.concurrent_runs or most
        return cls(threads, runs)


def http_processes(settings: Settings) -> int:
    """How many HTTP processes the settings ask for; raises SettingsError where one is all there is.

    For 0 there is one before a CPU, and before a GPU as many as the cores allow.
    """
    asked = settings.http_processes
    if not sys.platform.startswith("linux"):
        if asked > 1:
            raise SettingsError(
                [
                    f"http_processes is {asked}, and only Linux spreads connections over several"
                    " sockets (SO_REUSEPORT). Set it to 1, or run several services."
                ]
            )
        return 1
    if asked or settings.processor == "cpu":
        return asked or 1
    return max(1, min(usable_cpus() - ENGINE_CORES, MOST_HTTP_PROCESSES))


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the cores left by the affinity mask and the cgroup quota, at least 1.

    A quota of 2.5 cores gives 2: a third thread would only be throttled, and threads that work
    in step wait for the slowest. ``root`` is the file system's root; tests give another one.
    """
    quotas = [int(quota) for quota in (*_quotas_v2(root), *_quotas_v1(root))]
    return max(1, min([_affinity(), *quotas]))


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
