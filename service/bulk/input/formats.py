"""The records of lines, tables and JSON lines, and the text, id and kept values in each of them.

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
MAX_LINE_BYTES = 1 << 27

Record = Any  # a row before it is parsed: bytes, a list of fields, or values
Kept = tuple[str | None, ...]
Fields = tuple[str, str | None, Kept]  # text, id, and the kept values


class BadRow(Exception):
    """A record that is no text; the message says why, without the place."""

    def __init__(self, message: str, row_id: str | None = None, kept: Kept = ()) -> None:
        super().__init__(message)
        self.row_id = row_id
        self.kept = kept


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


Parse = Callable[[Record], Fields]
Opened = tuple[Iterator[Record], Parse]


def open_lines(file: IO[bytes], name: str, options: Options) -> Opened:
    """A text a line."""
    refuse_columns(name, options)

    def parse(line: bytes) -> Fields:
        return line.rstrip(b"\r\n").decode("utf-8", "surrogateescape"), None, ()

    return without_mark(_lines(file, name)), parse


def _lines(file: IO[bytes], name: str) -> Iterator[bytes]:
    """The lines of a file; raises InputError at one that memory need not hold."""
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
        if len(line) == MAX_LINE_BYTES:
            raise InputError(
                f"{name}, line {number} has more than {MAX_LINE_BYTES} bytes, the limit of a line."
                " Divide it."
            )
        yield line


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
    at = find_columns(name, header, options)

    def parse(fields: list[str]) -> Fields:
        if len(fields) != len(header):
            raise BadRow(f"it has {len(fields)} fields and the header {len(header)}")
        row_id = None if at.id is None else fields[at.id]
        return fields[at.text], row_id, tuple(fields[each] for each in at.kept)

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


def open_json_lines(file: IO[bytes], name: str, options: Options) -> Opened:
    """An object or a string a line."""

    def parse(line: bytes) -> Fields:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            _require_utf8(line)
            raise BadRow(f"the line is not JSON: {error}") from None
        if isinstance(value, str):
            return value, None, (None,) * len(options.keep)
        if not isinstance(value, dict):
            raise BadRow(f"the line is {_kind(value)} and not an object")
        return _fields(value, options)

    return without_mark(_lines(file, name)), parse


def _require_utf8(line: bytes) -> None:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise BadRow(
            f"the line is not UTF-8: byte 0x{line[error.start]:02x} at {error.start}"
        ) from None


def _fields(value: dict[str, Any], options: Options) -> Fields:
    """The fields of an object: its columns, or those of a line of an OpenAI batch file.

    https://platform.openai.com/docs/guides/batch
    """
    kept = tuple(_as_kept(value.get(column)) for column in options.keep)
    try:
        name, text, row_id = _named_text(value, options)
    except BadRow as bad:
        raise BadRow(str(bad), bad.row_id, kept) from None
    return require_string(text, name, row_id, kept), row_id, kept


def _named_text(value: dict[str, Any], options: Options) -> tuple[str, object, str | None]:
    """The name of the text in an object, the text and the id."""
    if options.text_column not in value and isinstance(value.get("body"), dict):
        row_id = _as_id(value.get("custom_id"))
        text = value["body"].get("input")
        if isinstance(text, list) and len(text) == 1:
            text = text[0]
        if isinstance(text, list):
            raise BadRow(f"body.input has {len(text)} texts; a line may have one", row_id)
        return "body.input", text, row_id
    row_id = _as_id(value.get(options.id_column)) if options.id_column else None
    if options.id_column and options.id_column not in value:
        raise BadRow(f"{NO_KEY}{options.id_column!r}, which --id-column names")
    if options.text_column not in value:
        raise BadRow(f"{NO_KEY}{options.text_column!r}, only {first_names(value)}", row_id)
    return options.text_column, value[options.text_column], row_id


def require_string(value: object, name: str, row_id: str | None, kept: Kept) -> str:
    """The value of a text column; raises BadRow where it is no string."""
    if not isinstance(value, str):
        raise BadRow(f"{name} is {_kind(value)} and not a string", row_id, kept)
    return value


def _as_kept(value: object) -> str | None:
    """A value as text: a string as it is, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # loads allows more
        raise BadRow("a kept value is nested too deeply; write it as a string") from None


def _as_id(value: object) -> str | None:
    """An id as text; raises BadRow for a number of which digits may have been lost in reading."""
    if value is None or isinstance(value, str):
        return value
    try:
        written = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # as there
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
