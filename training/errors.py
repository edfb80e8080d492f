"""The errors of training that a user can correct; each message is one sentence with the cure.

TrainingError
├── ConfigError      a recipe file has an unknown, missing or mistyped key
├── DataError        a corpus or evaluation file is missing, or one of its lines is invalid
├── EncoderError     a backbone, checkpoint or artifact cannot be found or used
└── Interrupted      a run was stopped by a signal, and can be resumed

The command line prints the message and exits with status 2. Any other exception is a bug and keeps
its traceback.
"""


class TrainingError(Exception):
    """An error that the user can correct."""


class ConfigError(TrainingError):
    """A recipe or an option is invalid; the message names the file and the key."""


class DataError(TrainingError):
    """A data file cannot be used; the message names the file and, where there is one, the line."""


class EncoderError(TrainingError):
    """A folder or a name is not that of a usable encoder."""


class Interrupted(TrainingError):
    """A signal ended a run after its state was saved."""
