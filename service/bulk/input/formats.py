"""The records of each input format, and the text and id in each of them.

A record that is no text raises BadRow when it is parsed, which is not before it is needed.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import IO, Any

import orjson

from service.bulk.job import InputError, Options

PARQUET_BATCH_ROWS = 2_048
MAX_FIELD_CHARACTERS = 1 << 27  # of a CSV field; the module's own limit is 131,072

Record = Any  # a row before it is parsed: bytes, a list of fields, or (text, id)


class BadRow(Exception):
    """A record that is no text; the message says why, without the place."""

    def __init__(self, message: str, row_id: str | None = None) -> None:
        super().__init__(message)
        self.row_id = row_id


def check_text(text: str) -> str | None:
    """Why a text cannot be embedded, or None."""
    if not text:
        return "the text is empty"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            bad = ord(text[error.start])
            if 0xDC80 <= bad <= 0xDCFF:  # how surrogateescape keeps a byte that is not UTF-8
                return f"the text is not UTF-8: byte 0x{bad - 0xDC00:02x} at {error.start}"
            return f"the text has a lone surrogate at {error.start}"
    return None


Parse = Callable[[Record], tuple[str, str | None]]
Opened = tuple[Iterator[Record], Parse]


def open_lines(file: IO[bytes]) -> Opened:
    """A text a line."""

    def parse(line: bytes) -> tuple[str, None]:
        return line.rstrip(b"\r\n").decode("utf-8", "surrogateescape"), None

    return _without_mark(file), parse


def _without_mark(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines without a byte order mark before the first one."""
    iterator = iter(lines)
    for first in islice(iterator, 1):
        yield first.removeprefix(b"\xef\xbb\xbf")
    yield from iterator


def as_text(file: IO[bytes]) -> io.TextIOWrapper:
    """The file's text; a byte that is not UTF-8 becomes a lone surrogate, which is found later."""
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")


def open_table(lines: Iterable[str], name: str, options: Options, *, tabs: bool) -> Opened:
    """CSV (RFC 4180) with a header, or TSV, whose media type has no quoting."""
    csv.field_size_limit(MAX_FIELD_CHARACTERS)
    if tabs:
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        rows = csv.reader(lines, strict=True)
    header = next(rows, [])
    text_at = _column(name, header, options.text_column, "--text-column")
    id_at = _id_column(name, header, options)

    def parse(fields: list[str]) -> tuple[str, str | None]:
        if len(fields) != len(header):
            raise BadRow(f"it has {len(fields)} fields and the header {len(header)}")
        return fields[text_at], None if id_at is None else fields[id_at]

    return (row for row in rows if row), parse


def _column(name: str, columns: Sequence[str], wanted: str, flag: str) -> int:
    if wanted not in columns:
        known = ", ".join(columns) or "none"
        raise InputError(f"{name} has no column {wanted!r}; it has {known}. Name one by {flag}.")
    return list(columns).index(wanted)


def _id_column(name: str, columns: Sequence[str], options: Options) -> int | None:
    if options.id_column is None:
        return None
    return _column(name, columns, options.id_column, "--id-column")


def open_json_lines(file: IO[bytes], options: Options) -> Opened:
    """An object or a string a line."""

    def parse(line: bytes) -> tuple[str, str | None]:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            _require_utf8(line)
            raise BadRow(f"the line is not JSON: {error}") from None
        if isinstance(value, str):
            return value, None
        if not isinstance(value, dict):
            raise BadRow(f"the line is {_kind(value)} and not an object")
        return _fields(value, options)

    return _without_mark(file), parse


def _require_utf8(line: bytes) -> None:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise BadRow(
            f"the line is not UTF-8: byte 0x{line[error.start]:02x} at {error.start}"
        ) from None


def _fields(value: dict[str, Any], options: Options) -> tuple[str, str | None]:
    """Text and id of an object: its columns, or those of a line of an OpenAI batch file.

    https://platform.openai.com/docs/guides/batch
    """
    if options.text_column not in value and isinstance(value.get("body"), dict):
        row_id = _as_id(value.get("custom_id"))
        text = value["body"].get("input")
        if isinstance(text, list) and len(text) == 1:
            text = text[0]
        if isinstance(text, list):
            raise BadRow(f"body.input has {len(text)} texts; a line may have one", row_id)
        return _as_text(text, "body.input", row_id), row_id
    row_id = _as_id(value.get(options.id_column)) if options.id_column else None
    if options.id_column and options.id_column not in value:
        raise BadRow(f"it has no {options.id_column!r}, which --id-column names")
    if options.text_column not in value:
        known = ", ".join(value) or "nothing"
        raise BadRow(f"it has no {options.text_column!r}, only {known}", row_id)
    return _as_text(value[options.text_column], options.text_column, row_id), row_id


def _as_text(value: object, name: str, row_id: str | None) -> str:
    if not isinstance(value, str):
        raise BadRow(f"{name} is {_kind(value)} and not a string", row_id)
    return value


def _as_id(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _kind(value: object) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", list: "a list"}
    return "null" if value is None else kinds.get(type(value), "an object")


class ParquetRecords:
    """The wanted columns of a Parquet file as (text, id), without whole row groups in memory."""

    def __init__(self, file: IO[bytes], name: str, options: Options) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(file)
        schema = self._file.schema_arrow
        _column(name, schema.names, options.text_column, "--text-column")
        _id_column(name, schema.names, options)
        kind = schema.field(options.text_column).type
        if "string" not in str(kind):
            raise InputError(
                f"{name}: the column {options.text_column!r} holds {kind} and not strings. Name"
                " another one by --text-column."
            )
        self._columns = [options.text_column, *([options.id_column] if options.id_column else [])]
        self._group = 0
        self._buffered: Iterator[Record] = iter(())

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        while True:
            for record in self._buffered:
                return record
            if self._group == self._file.num_row_groups:
                raise StopIteration
            self._buffered = self._read_group(self._group)
            self._group += 1

    def skip(self, count: int) -> int:
        """Pass over records, without reading the row groups that are passed over whole."""
        skipped = sum(1 for _ in islice(self._buffered, count))
        while self._group < self._file.num_row_groups:
            rows = self._file.metadata.row_group(self._group).num_rows
            if skipped + rows > count:
                return skipped + sum(1 for _ in islice(self, count - skipped))
            self._group += 1
            skipped += rows
        return skipped

    def _read_group(self, group: int) -> Iterator[Record]:
        batches = self._file.iter_batches(
            PARQUET_BATCH_ROWS, row_groups=[group], columns=self._columns, use_threads=False
        )
        for batch in batches:
            texts = _strings(batch.column(self._columns[0]))
            ids = _strings(batch.column(self._columns[-1])) if self._columns[1:] else None
            yield from zip(texts, ids or [None] * len(texts), strict=True)


def _strings(column: Any) -> list[Any]:
    import pyarrow as pa

    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        values = column.cast(pa.binary()).to_pylist()
        return [v if v is None else v.decode("utf-8", "surrogateescape") for v in values]


def open_parquet(file: IO[bytes], name: str, options: Options) -> Opened:
    """A row of a Parquet file a record."""

    def parse(record: tuple[Any, Any]) -> tuple[str, str | None]:
        row_id = None if record[1] is None else str(record[1])
        return _as_text(record[0], options.text_column, row_id), row_id

    return ParquetRecords(file, name, options), parse
