"""What the numbers were measured on."""

import os
import platform
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


def _read_cpu() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo."""
    first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
