"""Every error of training that a person can mend; the message is one sentence with the cure.

TrainingError
├── ConfigError      a recipe file has an unknown, missing or mistyped key
├── DataError        a corpus or evaluation file is missing, or one of its lines is bad
├── EncoderError     a backbone, checkpoint or artifact cannot be found or used
└── Interrupted      a run was stopped by a signal, and can be resumed

The command line prints the message and exits with status 2. Any other exception is a bug of ours
and keeps its traceback.
"""


class TrainingError(Exception):
    """Something the person at the keyboard can put right."""


class ConfigError(TrainingError):
    """A recipe does not say what to do; the message names the file and the key."""


class DataError(TrainingError):
    """A data file cannot be used; the message names the file and, where there is one, the line."""


class EncoderError(TrainingError):
    """A folder or a name does not lead to an encoder."""


class Interrupted(TrainingError):
    """A signal ended a run; its state is saved."""
