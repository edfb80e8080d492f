"""The records of a Parquet file: the wanted columns, batch after batch."""

from collections.abc import Iterator
from itertools import islice
from typing import IO, Any

from s2sent.service.bulk.input.columns import find_columns
from s2sent.service.bulk.input.formats import Opened, Record, require_string
from s2sent.service.bulk.job import InputError, Options

PARQUET_BATCH_ROWS = 2_048


class ParquetRecords:
    """The wanted columns of a Parquet file as (text, id), without whole row groups in memory."""

    def __init__(self, file: IO[bytes], name: str, options: Options) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(file)
        schema = self._file.schema_arrow
        text_at, id_at = find_columns(name, schema.names, options)
        if "string" not in str(kind := schema.field(text_at).type):
            raise InputError(
                f"{name}: the column {options.text_column!r} holds {kind} and not strings. Name"
                " another one by --text-column."
            )
        if id_at is not None and "binary" in str(kind := schema.field(id_at).type):
            raise InputError(
                f"{name}: the column {options.id_column!r} holds {kind}, which is no text. Name"
                " another one by --id-column, or write it as strings."
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
        return require_string(record[0], options.text_column, row_id), row_id

    return ParquetRecords(file, name, options), parse
