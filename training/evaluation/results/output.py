"""Tries whether a file can be written, before the work whose result it will hold."""

from pathlib import Path
from tempfile import TemporaryFile

from s2sent.training.errors import ConfigError


def require_writable(path: Path) -> None:
    """Raise `ConfigError` unless a file can be written to ``path``, its folders made as needed.

    Nothing is left there, and no folder is made.
    """
    try:
        if path.exists():
            path.open("ab").close()
            return
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}): name a file in a folder that you may "
            "write to."
        ) from None
