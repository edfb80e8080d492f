"""Reading /metrics, whose answers may be a second old."""

import time
from collections.abc import Callable
from typing import TypeVar

from s2sent.service.api.exposition import FRESH_SECONDS

Read = TypeVar("Read")


def settled(read: Callable[[], Read]) -> Read:
    """What is read, once it stays the same for longer than an answer may be old."""
    last = read()
    while True:
        time.sleep(FRESH_SECONDS + 0.1)
        if (now := read()) == last:
            return now
        last = now
