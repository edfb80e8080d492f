"""Panics of Rust libraries, raised as ordinary exceptions."""

from collections.abc import Iterator
from contextlib import contextmanager


class Panic(Exception):
    """Code written in Rust, such as the tokenizer, has panicked."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise `Panic` for PyO3's PanicException, which derives from BaseException.

    Handlers of Exception would miss it: a request would end without an answer, and a thread
    without a result (https://pyo3.rs/main/doc/pyo3/panic/struct.panicexception).
    """
    try:
        yield
    except BaseException as error:  # its class cannot be imported, so it is known by name
        if type(error).__name__ != "PanicException":
            raise
        raise Panic(str(error)) from error
