"""What the numbers were measured on: the machine, and the state of the source."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil


def describe_machine() -> dict[str, Any]:
    """Processor with its flags, cores that may be used, memory, system, and the load just now."""
    cpu = _read_cpu()
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "cpu_flags": cpu.get("flags", "").split(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": psutil.virtual_memory().total / 1e9,
        "system": platform.platform(),
        "load_average": os.getloadavg(),
    }


def describe_source(root: Path) -> dict[str, Any]:
    """The commit of the checkout at ``root`` and whether files differ from it.

    Both are None outside a git work tree.
    """
    commit, status = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain")
    return {"commit": commit, "dirty": None if status is None else bool(status)}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    except FileNotFoundError:  # git is not installed
        return None
    return None if done.returncode else done.stdout.strip()


def _read_cpu() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo."""
    first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
