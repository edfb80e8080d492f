"""Panics of Rust libraries, raised as ordinary exceptions."""

from types import TracebackType


class Panic(Exception):
    """Code written in Rust, such as the tokenizer, has panicked."""


class PanicsAsErrors:
    """A context that raises `Panic` for PyO3's PanicException, which derives from BaseException.

    Handlers of Exception would miss it: a request would end without an answer, and a thread
    without a result (https://pyo3.rs/main/doc/pyo3/panic/struct.panicexception).
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The class cannot be imported, so it is known by name.
        if kind is not None and kind.__name__ == "PanicException":
            raise Panic(str(error)) from error
