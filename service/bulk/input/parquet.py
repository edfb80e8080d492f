"""The records of a Parquet file: the wanted columns, batch after batch of a bounded size.

pyarrow reads them, but for strings of long pages, which it would hold some times over.
"""

from collections.abc import Iterator
from itertools import islice
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from s2sent.service.bulk.input.columns import find_columns
from s2sent.service.bulk.input.formats import Fields, Opened, Record, require_string
from s2sent.service.bulk.input.long_strings import has_long_page, read_strings
from s2sent.service.bulk.job import InputError, Options

# What is decoded together. Rows differ in size, so there are few even where a mean one is small.
BATCH_ROWS = 64
BATCH_BYTES = 1 << 23
BUFFER_BYTES = 1 << 20  # of a column's compressed pages


class ParquetRecords:
    """The wanted columns of a Parquet file as tuples, without whole row groups in memory."""

    def __init__(self, file: IO[bytes], name: str, options: Options) -> None:
        self._file = pq.ParquetFile(
            file,
            coerce_int96_timestamp_unit="us",  # nanoseconds end in the year 2262
            buffer_size=BUFFER_BYTES,
            pre_buffer=False,  # of a whole row group
        )
        self._source, self._name = file, name
        schema = self._file.schema_arrow
        at = find_columns(name, schema.names, options)
        if not _is_string(kind := schema.field(at.text).type):
            raise InputError(
                f"{name}: the column {options.text_column!r} holds {kind} and not strings. Name"
                " another one by --text-column."
            )
        wanted = [(at.id, "--id-column")] if at.id is not None else []
        wanted += [(each, "--keep") for each in at.kept]
        for place, flag in wanted:
            _require_text(schema.field(place), name, flag)
        self._columns = [schema.names[each] for each in (at.text, *(place for place, _ in wanted))]
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
        wanted = list(dict.fromkeys(self._columns))
        places = [wanted.index(name) for name in self._columns]
        for row in zip(*(self._values(group, name) for name in wanted), strict=True):
            yield tuple(row[at] for at in places)

    def _values(self, group: int, name: str) -> Iterator[str | None]:
        schema, described = self._file.schema, self._file.metadata.row_group(group)
        at = next((n for n, column in enumerate(schema) if column.path == name), None)
        if at is not None and _is_string(self._file.schema_arrow.field(name).type):
            chunk, column = described.column(at), schema.column(at)
            if has_long_page(self._source, chunk, column):
                strings = read_strings(self._source, self._name, chunk, column)
                return (None if string is None else _decode(string) for string in strings)
        return self._decoded(group, name)

    def _decoded(self, group: int, name: str) -> Iterator[str | None]:
        """The values of a column of a row group as pyarrow decodes them."""
        batches = self._file.iter_batches(
            self._batch_rows(group), row_groups=[group], columns=[name], use_threads=False
        )
        for batch in batches:
            yield from _as_text(batch.column(0))

    def _batch_rows(self, group: int) -> int:
        """How many rows of a group's mean size are BATCH_BYTES, at most BATCH_ROWS."""
        described = self._file.metadata.row_group(group)
        chunks = [described.column(at) for at in range(described.num_columns)]
        size: int = sum(
            chunk.total_uncompressed_size
            for chunk in chunks
            if f"{chunk.path_in_schema}.".startswith(tuple(f"{name}." for name in self._columns))
        )
        rows: int = described.num_rows
        return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // max(size, 1)))


def open_parquet(file: IO[bytes], name: str, options: Options) -> Opened:
    """A row of a Parquet file a record."""
    has_id = options.id_column is not None

    def parse(record: tuple[Any, ...]) -> Fields:
        text, *rest = record
        row_id, kept = rest[0] if has_id else None, tuple(rest[has_id:])
        return require_string(text, options.text_column, row_id, kept), row_id, kept

    return ParquetRecords(file, name, options), parse


def _is_string(kind: pa.DataType) -> bool:
    return _plain(kind) in (pa.string(), pa.large_string(), pa.string_view())


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type without a dictionary around it."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _require_text(field: pa.Field, name: str, flag: str) -> None:
    """Raise InputError where the values of a column cannot be told as text."""
    kind = _plain(field.type)
    problem = None
    if pa.types.is_floating(kind) and flag == "--id-column":
        problem = "which may be rounded"
    elif _is_uuid(kind):
        return
    elif "binary" in str(kind):
        problem = "which is no text"
    else:
        try:
            pa.nulls(1, kind).cast(pa.string())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            problem = "which cannot be told as text"
    if problem:
        raise InputError(
            f"{name}: the column {field.name!r} holds {field.type}, {problem}. Name another one by"
            f" {flag}, or write it as strings."
        )


def _is_uuid(kind: pa.DataType) -> bool:
    return str(kind) == "extension<arrow.uuid>"


def _as_text(column: Any) -> Iterator[str | None]:
    """The values of a column as text; Python's own types hold fewer times and dates than Arrow's.

    Strings are made one by one, because they may be long.
    """
    if _is_string(column.type):
        yield from map(_string, column)
    elif _is_uuid(_plain(column.type)):
        yield from (None if value is None else str(value) for value in column.to_pylist())
    else:
        yield from column.cast(pa.string()).to_pylist()


def _string(value: Any) -> str | None:
    try:
        text: str | None = value.as_py()
        return text
    except UnicodeDecodeError:
        raw = value.value if isinstance(value, pa.DictionaryScalar) else value
        return _decode(raw.as_buffer().to_pybytes())


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
