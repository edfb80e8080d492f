"""Threads come from what the process may use, not from what the host has."""

import os
from pathlib import Path
from typing import Any

import pytest

from service.engine import parallelism as cpu
from service.engine.parallelism import CorePin, Parallelism, own_cpus, usable_cpus
from service.settings import Settings


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


def test_threads_stay_on_cores_where_they_are_as_many(tmp_path: Path) -> None:
    assert own_cpus(8, tmp_path) == (0, 1, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("threads", [1, 2, 7, 9, 16])
def test_threads_go_anywhere_where_they_are_more_or_fewer(tmp_path: Path, threads: int) -> None:
    assert own_cpus(threads, tmp_path) == ()


def test_threads_under_a_quota_go_anywhere(tmp_path: Path) -> None:
    """Every other container of the machine would choose the same cores."""
    files = {"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "400000 100000\n"}
    assert own_cpus(4, write(tmp_path, files)) == ()
    assert own_cpus(8, tmp_path) == ()


def test_one_thread_goes_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert own_cpus(1, tmp_path) == ()


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Where threads were told to stay."""
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: seen.append(cpus), raising=False)
    return seen


def test_a_seat_is_the_threads_own_in_a_crowd_and_the_first_alone(
    moves: list[tuple[int, ...]],
) -> None:
    core_pin = CorePin((4, 6, 9), place=2)
    for exclusive in (False, False, True, True, False):
        core_pin.pin(exclusive=exclusive)
    assert moves == [(9,), (4,), (9,)]  # and no call where nothing changes


def test_more_threads_than_cores_share_them(moves: list[tuple[int, ...]]) -> None:
    CorePin((4, 6), place=3).pin(exclusive=False)
    assert moves == [(6,)]


def test_without_cores_nobody_is_moved(moves: list[tuple[int, ...]]) -> None:
    CorePin((), place=1).pin(exclusive=True)
    assert moves == []


def test_a_core_that_was_taken_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def refuse(pid: int, cpus: tuple[int, ...]) -> None:
        tries.append(cpus)
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    core_pin = CorePin((0, 1), place=1)
    core_pin.pin(exclusive=False)
    core_pin.pin(exclusive=True)
    assert tries == [(1,)]


@pytest.mark.parametrize(
    ("settings", "cpus"),
    [
        ({}, tuple(range(8))),
        ({"threads": 8}, tuple(range(8))),
        ({"concurrent_runs": 1}, tuple(range(8))),
        ({"concurrent_runs": 4}, ()),
        ({"threads": 4}, ()),
        ({"pin_threads": False}, ()),
        ({"device": "cuda"}, ()),
    ],
)
def test_whether_threads_stay_is_a_setting(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], cpus: tuple[int, ...]
) -> None:
    monkeypatch.setattr(cpu, "_quotas_v2", lambda root: iter(()))
    monkeypatch.setattr(cpu, "_quotas_v1", lambda root: iter(()))
    assert Parallelism.of(Settings(**settings)).cpus == cpus
