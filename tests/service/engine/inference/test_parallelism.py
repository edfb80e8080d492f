"""Threads come from what the process may use, not from what the host has."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from s2sent.service.engine.inference import parallelism
from s2sent.service.engine.inference.parallelism import http_processes, usable_cpus
from s2sent.service.settings import Settings, SettingsError


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


@pytest.mark.parametrize(
    ("asked", "device", "cores", "expected"),
    [
        *((0, "cpu", 64, 1), (1, "cpu", 64, 1), (4, "cpu", 2, 4), (64, "cpu", 2, 64)),
        *((0, "cuda", 1, 1), (0, "cuda", 3, 1), (0, "cuda", 8, 6), (0, "cuda", 96, 12)),
        *((1, "cuda", 16, 1), (0, "cuda", 16, 12), (2, "cuda", 16, 2)),
    ],
)
def test_http_processes_are_as_many_as_asked_or_as_suit_the_device(
    asked: int, device: Any, cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallelism, "usable_cpus", lambda: cores)
    assert http_processes(Settings(http_processes=asked, device=device)) == expected


def test_where_sockets_are_not_spread_there_is_one_http_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert [http_processes(Settings(http_processes=n)) for n in (0, 1)] == [1, 1]
    with pytest.raises(SettingsError, match="http_processes is 2, and only Linux spreads"):
        http_processes(Settings(http_processes=2))
