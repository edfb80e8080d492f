"""`s2sent serve` whose HTTP processes do not start (``-m tests.support.broken_http_process``).

They end at once; with ``--refused FIRST-LAST`` the system starts all but these, counted from 1.
"""

import argparse
import asyncio
import errno
import os
import sys
from itertools import count
from typing import Any

from s2sent.service import supervisor
from s2sent.service.process import end_process
from s2sent.service.settings_loading import load_settings
from s2sent.service.telemetry.logs import logging_to


def refuse(first: int, last: int) -> None:
    """Have the system start no process from the first to the last, as at a limit of processes."""
    numbers, start = count(1), asyncio.create_subprocess_exec

    async def limited(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        if first <= next(numbers) <= last:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return await start(*command, **options)

    asyncio.create_subprocess_exec = limited


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--refused")
    own, flags = parser.parse_known_args()
    given: Any = dict(zip(flags[::2], flags[1::2], strict=True))
    settings = load_settings(**{name[2:].replace("-", "_"): given[name] for name in given})
    if own.refused:
        refuse(*map(int, own.refused.split("-")))
    else:
        supervisor.MODULE = "s2sent.service.not_there"
    with logging_to(sys.stdout, settings.log_level):
        code = supervisor.serve_processes(settings, settings.http_processes)
    end_process(code)
