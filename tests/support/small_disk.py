"""A file system of its own, to be filled or made read-only; needs root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, *, megabytes: int) -> Iterator[Path]:
    """Mount a file system in memory at ``folder`` for the block; skips the test without root."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    """Change the options of a mounted file system, such as ``ro`` or ``size=64m``."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)
