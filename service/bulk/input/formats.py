"""The records of lines, tables and JSON lines, and the text and id in each of them.

A record that is no text raises BadRow when it is parsed, which is not before it is needed.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import orjson

from s2sent.service.bulk.input.columns import find_columns, first_names, refuse_columns
from s2sent.service.bulk.job import InputError, Options

if TYPE_CHECKING:
    import _csv

NO_KEY = "it has no "  # how the error of an object without a key begins
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


def open_lines(file: IO[bytes], name: str, options: Options) -> Opened:
    """A text a line."""
    refuse_columns(name, options)

    def parse(line: bytes) -> tuple[str, None]:
        return line.rstrip(b"\r\n").decode("utf-8", "surrogateescape"), None

    return without_mark(file), parse


def without_mark(lines: Iterable[bytes]) -> Iterator[bytes]:
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
    records = _records(rows, name)
    header = next(records, [])
    text_at, id_at = find_columns(name, header, options)

    def parse(fields: list[str]) -> tuple[str, str | None]:
        if len(fields) != len(header):
            raise BadRow(f"it has {len(fields)} fields and the header {len(header)}")
        return fields[text_at], None if id_at is None else fields[id_at]

    return records, parse


def _records(rows: "_csv.Reader", name: str) -> Iterator[list[str]]:
    """The records that are not empty; an error names the line on which its record begins."""
    line = 1
    try:
        for row in rows:
            if row:
                yield row
            line = rows.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{name}, line {line}: the record that begins there cannot be read as CSV: {error}."
            " Mend the file."
        ) from None


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

    return without_mark(file), parse


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
        return require_string(text, "body.input", row_id), row_id
    row_id = _as_id(value.get(options.id_column)) if options.id_column else None
    if options.id_column and options.id_column not in value:
        raise BadRow(f"{NO_KEY}{options.id_column!r}, which --id-column names")
    if options.text_column not in value:
        raise BadRow(f"{NO_KEY}{options.text_column!r}, only {first_names(value)}", row_id)
    return require_string(value[options.text_column], options.text_column, row_id), row_id


def require_string(value: object, name: str, row_id: str | None) -> str:
    """The value of a text column; raises BadRow where it is no string."""
    if not isinstance(value, str):
        raise BadRow(f"{name} is {_kind(value)} and not a string", row_id)
    return value


def _as_id(value: object) -> str | None:
    """An id as text; raises BadRow for a number of which digits may have been lost in reading."""
    if value is None or isinstance(value, str):
        return value
    try:
        written = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # loads allows more
        raise BadRow("the id is nested too deeply; write it as a string") from None
    if _has_float(value):
        raise BadRow(f"the id is {written}, a number that may be rounded; write it as a string")
    return written


def _has_float(value: object) -> bool:
    """Whether a float is in it, which an integer of more than 64 bits becomes, too."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, float) or any(map(_has_float, inner))


def _kind(value: object) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", list: "a list"}
    return "null" if value is None else kinds.get(type(value), "an object")
