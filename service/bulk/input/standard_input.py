"""Standard input: a copy of it that can be read again, and a guess of its format."""

import atexit
import errno
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from s2sent.service.bulk.input.formats import without_mark
from s2sent.service.bulk.job import InputError, InputFormat

READ_BYTES = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def spool() -> Path:
    """A temporary copy of standard input, which is deleted when the process ends."""
    if sys.stdin is None:
        raise InputError("Standard input is closed. Pipe texts into the command, or name files.")
    prefix = "s2sent-stdin-"
    with (
        making_room("Standard input"),
        tempfile.NamedTemporaryFile(prefix=prefix, delete=False) as copy,
    ):
        path = Path(copy.name)
        atexit.register(path.unlink, missing_ok=True)
        shutil.copyfileobj(sys.stdin.buffer, copy, READ_BYTES)
    return path


@contextmanager
def making_room(name: str) -> Iterator[None]:
    """Turn a full folder of temporary files into InputError."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise InputError(
            f"{name} is copied to a temporary file, for which {tempfile.gettempdir()} has no room."
            " Make room there, or set TMPDIR to a folder that has."
        ) from None


def guess_format(lines: Iterable[bytes]) -> InputFormat:
    """Parquet by its mark, JSON lines by an object or a string first, else text."""
    first = next((line for line in without_mark(lines) if not line.isspace()), b"").strip()
    if first.startswith(b"PAR1"):
        return "parquet"
    return "jsonl" if first.startswith(b"{") or _is_json_string(first) else "txt"


def _is_json_string(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), str)
    except orjson.JSONDecodeError:
        return False
