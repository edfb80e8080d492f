"""Writing files so that each is whole or not there, whenever the machine stops.

A file gets a temporary name, is flushed to disk and renamed, and its folder is flushed
(fsync(2), rename(2)). Faults of the file system become OutputError.
"""

import errno
import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from s2sent.service.bulk.job import OutputError

FULL = {errno.ENOSPC: "is full", errno.EDQUOT: "is over its quota", errno.EFBIG: "is over a limit"}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a full disk and other faults of the file system into OutputError."""
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        if number in FULL:
            raise OutputError(
                f"{path}: the disk {FULL[number]} ({os.strerror(number).lower()}). Make room and"
                " run the same command with --resume; committed parts are kept."
            ) from None
        raise OutputError(
            f"{path} cannot be written: {error.strerror or error}. Mend that and run the same"
            " command with --resume; committed parts are kept."
        ) from None


def temporary(path: Path) -> Path:
    """A name beside ``path`` that no other process uses."""
    return path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")


def rename_into_place(written: Path, path: Path) -> None:
    """Give a file that is on disk its name, and write the folder to disk."""
    os.replace(written, path)
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Write a folder's names to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Write a small file so that it is either there and whole, or not there."""
    partial = temporary(path)
    with writing(path):
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            rename_into_place(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    """The sha256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
