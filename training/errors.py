"""The errors of training that a user can correct; each message is one sentence with the cure.

TrainingError
├── ConfigError      a recipe file has an unknown, missing or mistyped key, or a wrong value
├── DataError        a corpus or evaluation file is missing, or one of its lines is invalid
├── EncoderError     a backbone, checkpoint or artifact cannot be found or used
└── Interrupted      a run was stopped by a signal, and can be resumed

The command line prints the message and exits with status 2, or 128 and the signal's number; with
status 1 it names a file that the system refuses. Any other exception is a bug and keeps its
traceback.
"""

import signal

from s2sent.model.artifact.errors import UserError

TEMPLATE = "s2sent.model.network.template"  # takes seconds to import; its errors are the user's


class TrainingError(UserError):
    """An error of training that the user can correct."""


class ConfigError(TrainingError):
    """A recipe or an option is invalid; the message names the file and the key."""


class DataError(TrainingError):
    """A data file cannot be used; the message names the file and, where there is one, the line."""


class EncoderError(TrainingError):
    """A folder or a name is not that of a usable encoder."""


class Interrupted(TrainingError):
    """A signal, by default Ctrl-C's, ended a run after its state was saved."""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number or signal.SIGINT


def failure(error: Exception) -> tuple[str, int] | None:
    """The sentence and the exit status for an error of the user or the system; None for a bug."""
    if isinstance(error, Interrupted):
        return str(error), 128 + error.number
    if isinstance(error, UserError) or type(error).__module__ == TEMPLATE:
        return str(error), 2
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be read or written: {error.strerror or error}.", 1
    return None
