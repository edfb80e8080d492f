"""What torch, onnx, ONNX Runtime and optimum raise or print in an export, as one sentence."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from s2sent.model.export.options import ExportError
from s2sent.model.network.loading.checkpoint import in_one_line

log = logging.getLogger(__name__)

CURES = {  # by what is done to the graph
    "traced": "",
    "optimised": "export it with --standard-operators, or ",
    "run": "",
}


@contextmanager
def step(done: str, config: Any) -> Iterator[None]:
    """Within this context the graph of a backbone with this configuration is ``done``.

    Raises `ExportError` for an error that is not this project's own, with the family, the step and
    the cure; the log has the error itself, and what the libraries print. A full disk or memory
    stays what it is.
    """
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if type(error).__module__.startswith("s2sent."):
            raise
        log.info("the graph cannot be %s: %s", done, printed.getvalue(), exc_info=error)
        cure = CURES[done] if hasattr(config, "num_attention_heads") else ""  # nothing to fuse
        raise ExportError(
            f"the graph of this {config.model_type} cannot be {done} ({in_one_line(error)}):"
            f" {cure}choose a backbone of a family in docs/encoders.md."
        ) from error
