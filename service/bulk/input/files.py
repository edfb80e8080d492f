"""Input files: their identity and their rows, read forward with memory that does not grow.

Text, CSV, TSV, JSON lines (the lines of OpenAI's batch files among them) and Parquet, each also
gzipped. A problem of one row becomes the row's error; a problem of the file raises InputError.
"""

import glob
import gzip
import io
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Self, cast, get_args

from s2sent.service.bulk.input.formats import (
    BadRow,
    Opened,
    Record,
    as_text,
    check_text,
    open_json_lines,
    open_lines,
    open_table,
)
from s2sent.service.bulk.input.parquet import ParquetRecords, open_parquet
from s2sent.service.bulk.input.standard_input import READ_BYTES, guess_format, making_room, spool
from s2sent.service.bulk.input.unchanged import Content, UnchangedFile, has_changed
from s2sent.service.bulk.job import InputError, InputFormat, InputRow, Job, Options

SUFFIXES: dict[str, InputFormat] = {
    **{f".{name}": name for name in get_args(InputFormat)},
    **{".text": "txt", ".ndjson": "jsonl", ".pq": "parquet"},
}
STDIN = "-"
LEAST_PART_ROWS, MOST_PART_ROWS = 1_000, 10_000  # of texts of full length, and of short ones
PART_BYTES = 1_250_000


@dataclass(frozen=True)
class InputFile:
    """A file to embed; ``source`` is where its bytes are, ``name`` what it was called."""

    name: str
    source: Path
    format: InputFormat
    gzipped: bool
    content: Content
    rows: int = 0

    def require_unchanged(self) -> None:
        """Raise InputError where the name no longer leads to the file that was hashed."""
        with reading(lambda: self.name):
            if not self.content.is_that_of(self.source):
                raise has_changed(self.name)

    def as_json(self) -> dict[str, Any]:
        """Its identity for the manifest; bytes of its name that are not UTF-8 are escaped."""
        return {
            "name": os.fsencode(self.name).decode("utf-8", "backslashreplace"),
            "bytes": self.content.size,
            "sha256": self.content.sha256,
            "rows": self.rows,
            "format": self.format,
        }


def find_inputs(
    patterns: Sequence[str], *, tell: Callable[[str], None] = lambda _sentence: None
) -> list[str]:
    """The files that paths and globs name, those of a glob sorted; raises InputError.

    A file that is named more than once is there once, and ``tell`` is given a sentence.
    """
    found: list[str] = []
    for pattern in patterns:
        if pattern == STDIN or os.path.isfile(pattern):
            found.append(pattern)
        elif os.path.isdir(pattern):
            raise InputError(f"{pattern} is a folder. Name its files, as in '{pattern}/*.jsonl'.")
        elif os.path.exists(pattern):
            raise InputError(
                f"{pattern} is no regular file, and an input is read more than once. Pipe it into"
                " the command and write - in its place."
            )
        elif matches := sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True))):
            found += matches
        else:
            raise InputError(f"{pattern} is not there. Check the path.")
    if found.count(STDIN) > 1:
        raise InputError("- is given twice, and standard input can be read once. Give it once.")
    files: dict[tuple[int, ...], str] = {}
    for name in found:
        with reading(lambda: name):  # noqa: B023  # called before the next one
            stat = None if name == STDIN else os.stat(name)
        which = (stat.st_dev, stat.st_ino) if stat else ()  # whatever links lead to it
        if which in files:
            tell(f"{name} is named more than once, and is embedded once.")
        else:
            files[which] = name
    return list(files.values())


def with_part_rows(job: Job, files: Sequence[InputFile]) -> Job:
    """The job with a size of its parts; of its own about half a minute of work on two cores.

    Only the input decides, so that shards and later runs agree: of long rows there are fewer.
    """
    if job.options.rows_per_shard:
        return job
    size, rows = sum(file.content.size for file in files), sum(file.rows for file in files)
    part = max(LEAST_PART_ROWS, min(MOST_PART_ROWS, PART_BYTES * rows // max(size, 1)))
    return replace(job, options=replace(job.options, rows_per_shard=part))


def scan(
    names: Iterable[str],
    options: Options,
    *,
    given: InputFormat | None = None,
) -> list[InputFile]:
    """Hash every file and count its rows; raises InputError for one that cannot be read to its end.

    Standard input is first copied to a temporary file, which is deleted when the process ends.
    """
    return [_scan_one(name, options, given) for name in names]


def _scan_one(name: str, options: Options, given: InputFormat | None) -> InputFile:
    with reading(lambda: name):
        source = spool() if name == STDIN else Path(name)
        content = Content.of(source)
        with UnchangedFile(source, content, name) as file:
            gzipped = file.read(2) == b"\x1f\x8b"
        kind = given or _format_of(name, source, gzipped)
        scanned = InputFile(name, source, kind, gzipped, content)
        with RowReader(scanned, options) as rows:
            return replace(scanned, rows=rows.skip(sys.maxsize))


def _format_of(name: str, source: Path, gzipped: bool) -> InputFormat:
    if name == STDIN:
        with source.open("rb") as file, opened(file, gzipped) as decompressed:
            return guess_format(decompressed)
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    if suffixes and suffixes[-1] in (".gz", ".gzip"):
        suffixes.pop()
    if suffixes and suffixes[-1] in SUFFIXES:
        return SUFFIXES[suffixes[-1]]
    known = ", ".join(SUFFIXES)
    raise InputError(
        f"{name} has none of the endings {known}, so its format is not known. Give --input-format."
    )


@contextmanager
def reading(place: Callable[[], str]) -> Iterator[None]:
    """Turn what can go wrong with a file into InputError; ``place`` tells where it has happened."""
    import pyarrow

    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{place()} is gzip data that is cut or damaged: {error}. Copy the file again."
        ) from None
    except (pyarrow.ArrowException, UnicodeError) as error:
        raise InputError(
            f"{place()} is cut or damaged: {_first_line(error)}. Copy or write the file again."
        ) from None
    except OSError as error:  # pyarrow raises it for damaged pages as well
        reason = error.strerror or _first_line(error)
        raise InputError(
            f"{place()} cannot be read: {reason}. Copy or write the file again."
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


@contextmanager
def opened(file: IO[bytes], gzipped: bool) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed."""
    if gzipped:
        with gzip.open(file, "rb") as decompressed:
            yield cast(IO[bytes], decompressed)
    else:
        yield file


@contextmanager
def _decompressed(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    with making_room(name), tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(file, copy, READ_BYTES)
        yield cast(IO[bytes], copy)


class RowReader:
    """The rows of one file in order, to take or to skip. A context manager."""

    def __init__(
        self, file: InputFile, options: Options, *, max_characters: int = sys.maxsize
    ) -> None:
        """Of a text no more than ``max_characters`` are kept, and one more as a sign of it."""
        self._file = file
        self._options = options
        self._most = max_characters
        self._stack = ExitStack()
        self._position = 0

    def __enter__(self) -> Self:
        self._file.require_unchanged()
        with reading(lambda: self._file.name):
            self._records, self._parse = self._open()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def skip(self, count: int) -> int:
        """Pass over rows; returns how many there were, fewer at the end."""
        with reading(lambda: self._file.name):
            if isinstance(self._records, ParquetRecords):
                skipped = self._records.skip(count)
            else:
                skipped = sum(1 for _ in islice(self._records, count))
        self._position += skipped
        return skipped

    def take(self, count: int, characters: int = sys.maxsize) -> list[InputRow]:
        """The next rows, fewer at the end or where they have so many characters together."""
        rows: list[InputRow] = []
        for row in self.rows(count):
            rows.append(row)
            characters -= row.characters
            if characters <= 0:
                break
        return rows

    def rows(self, count: int) -> Iterator[InputRow]:
        """The next rows, one after another."""
        with reading(lambda: f"{self._file.name}, after row {self._position}"):
            for record in islice(self._records, count):
                self._position += 1
                yield self._row(record)

    def _open(self) -> Opened:
        name, options = self._file.name, self._options
        raw = UnchangedFile(self._file.source, self._file.content, name)
        buffered = self._stack.enter_context(io.BufferedReader(raw, READ_BYTES))
        file = self._stack.enter_context(opened(buffered, self._file.gzipped))
        match self._file.format:
            case "txt":
                return open_lines(file, name, options)
            case "jsonl":
                return open_json_lines(file, name, options)
            case "parquet":
                if self._file.gzipped:  # Parquet is read from its end
                    file = self._stack.enter_context(_decompressed(file, name))
                return open_parquet(file, name, options)
            case table:
                lines = self._stack.enter_context(as_text(file))
                return open_table(lines, name, options, tabs=table == "tsv")

    def _row(self, record: Record) -> InputRow:
        place = f"{self._file.name}, row {self._position}"
        problem = None
        try:
            text, row_id, kept = self._parse(record)
        except BadRow as bad:
            text, row_id, problem = "", bad.row_id, str(bad)
            kept = bad.kept or (None,) * len(self._options.keep)
        if row_id and check_text(row_id):
            text, row_id, problem = "", None, "the id is not UTF-8"
        for column, value in zip(self._options.keep, kept, strict=True):
            if value and check_text(value):
                text, problem = "", f"{column}, which --keep names, is not UTF-8"
                kept = (None,) * len(kept)
        problem = problem or check_text(text)
        if len(text) > self._most:  # with one that is never cleaned off; it is not read
            text = f"{text[: self._most]}."
        return InputRow(text, row_id, place, problem, kept)
