"""Keeps arrays that took long to compute in an SQLite file, which processes can share."""

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from s2sent.training.errors import DataError

log = logging.getLogger(__name__)

PAGE_BYTES = 1 << 16  # the most that SQLite has; long arrays are read faster
WAIT_SECONDS = 600  # for another process, which writes
TABLE = "CREATE TABLE IF NOT EXISTS arrays (key BLOB PRIMARY KEY, value BLOB)"

Arrays = Mapping[bytes, NDArray[np.float32]]


class KeptArrays:
    """Arrays of float32 by their keys; what finds no room in the file is left out."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._full = False

    def __len__(self) -> int:
        (count,) = self._database.execute("SELECT count(*) FROM arrays").fetchone()
        return int(count)

    def get(self, keys: Iterable[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """The arrays that are kept of these, flat, by their keys."""
        query = "SELECT value FROM arrays WHERE key = ?"
        rows = ((key, self._database.execute(query, (key,)).fetchone()) for key in keys)
        return {key: np.frombuffer(bytearray(row[0]), "f4") for key, row in rows if row}

    def put(self, arrays: Arrays) -> None:
        """Keep all of these or, where the file is full, none."""
        if self._full:
            return
        rows = ((key, value.tobytes()) for key, value in arrays.items())
        try:
            with self._database:
                self._database.executemany("INSERT OR IGNORE INTO arrays VALUES (?, ?)", rows)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            self._full = True
            log.warning("the cache is full: what it lacks is computed each time")


@contextmanager
def kept_arrays(file: Path, max_bytes: int = 1 << 40) -> Iterator[KeptArrays]:
    """The arrays in ``file``, which has at most ``max_bytes`` and is made if it is not there.

    Raises `DataError` within the block where SQLite cannot use the file.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(file, timeout=WAIT_SECONDS)) as database:
            database.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            database.execute(f"PRAGMA max_page_count = {max_bytes // PAGE_BYTES}")
            database.execute(TABLE)
            yield KeptArrays(database)
    except sqlite3.DatabaseError as error:
        raise DataError(
            f"{file} cannot be used ({error}): delete it, and what it kept is computed again, or"
            " name another cache."
        ) from error
