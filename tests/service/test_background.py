"""Work in the background hands over its result, or its error, and is waited for by nobody."""

import subprocess
import sys
import threading

import pytest

from s2sent.service.threads import Panic, in_background


def test_the_result_comes_from_a_thread_of_that_name() -> None:
    future = in_background(lambda: threading.current_thread().name, name="work")
    assert future.result(timeout=60) == "work"


def test_what_is_raised_comes_too() -> None:
    future = in_background(lambda: list[int]()[0], name="work")
    with pytest.raises(IndexError):
        future.result(timeout=60)


class PanicException(BaseException):
    """Named as PyO3 names what a library written in Rust raises when it panics."""


@pytest.mark.parametrize(("raised", "found"), [(PanicException, Panic), (SystemExit, SystemExit)])
def test_nobody_waits_for_a_thread_that_panicked_or_was_told_to_exit(
    raised: type[BaseException], found: type[BaseException]
) -> None:
    def work() -> None:
        raise raised("the reason")

    with pytest.raises(found, match="the reason"):
        in_background(work, name="work").result(timeout=60)


def test_a_process_ends_while_its_work_hangs() -> None:
    program = (
        "import threading; from s2sent.service.threads import in_background;"
        "in_background(threading.Event().wait, name='hangs')"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0
