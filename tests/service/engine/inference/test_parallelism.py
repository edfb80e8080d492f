"""Threads come from what the process may use, not from what the host has."""

import os
from pathlib import Path

import pytest

from s2sent.service.engine.inference.parallelism import usable_cpus


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """An affinity mask of eight cores, whatever machine the tests run on."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_affinity_counts_when_there_is_no_cgroup(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) == 8


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("6400000 100000", 8),
    ],
)
def test_quota_of_cgroup_v2_is_rounded_down_to_at_least_one(
    tmp_path: Path, cpu_max: str, expected: int
) -> None:
    files = {"proc/self/cgroup": "0::/pod/one\n", "sys/fs/cgroup/pod/one/cpu.max": cpu_max}
    assert usable_cpus(write(tmp_path, files)) == expected


def test_tightest_quota_up_the_tree_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/one\n",
        "sys/fs/cgroup/pod/one/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/pod/cpu.max": "300000 100000\n",
    }
    assert usable_cpus(write(tmp_path, files)) == 3


def test_path_of_the_host_falls_back_to_the_mount(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/not/visible/in/here\n",
        "sys/fs/cgroup/cpu.max": "200000 100000\n",
    }
    assert usable_cpus(write(tmp_path, files)) == 2


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("350000", 3)])
def test_quota_of_cgroup_v1(tmp_path: Path, quota: str, expected: int) -> None:
    files = {
        "proc/self/cgroup": "5:devices:/box\n4:cpu,cpuacct:/box\n1:name=systemd:/\n",
        "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": quota,
        "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
    }
    assert usable_cpus(write(tmp_path, files)) == expected


def test_this_machine_has_at_least_one_core() -> None:
    assert usable_cpus() >= 1
