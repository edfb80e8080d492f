"""What a start takes long for before its model is open, for the log and `/ready`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

_current = ""


@contextmanager
def start_step(what: str) -> Iterator[None]:
    """Log ``what``, such as "fetching m", and have `state_while_starting` say it for that long."""
    global _current
    logger.info("%s", what)
    _current = what
    try:
        yield
    finally:
        _current = ""


def state_while_starting() -> str:
    """The reason why a process that starts is not ready yet."""
    return f"starting ({_current})" if _current else "starting"
