"""Writers of one part: Parquet, JSON lines, or a slice of one big .npy file.

A writer takes chunks of rows in order. `commit` flushes what was written to disk and gives it its
name. What is not committed has a temporary name, and `OutputFolder.discard_unfinished` removes it.
"""

import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from s2sent.service.bulk.job import Dtype, Model, Options, OutputError
from s2sent.service.bulk.output.atomic_files import rename_into_place, temporary, writing
from s2sent.service.bulk.output.folder import EMBEDDINGS, OutputFolder
from s2sent.service.encodings import encode, int8_scale

# The type of a stored number, and what a missing embedding is made of.
STORED_TYPES: dict[Dtype, tuple[type[np.generic], float]] = {
    "float32": (np.float32, np.nan),
    "float16": (np.float16, np.nan),
    "int8": (np.int8, 0),
    "binary": (np.int8, 0),
    "ubinary": (np.uint8, 0),
}
ARROW_TYPES = {
    "float32": pa.float32(),
    "float16": pa.float16(),
    "int8": pa.int8(),
    "binary": pa.int8(),
    "ubinary": pa.uint8(),
}
NPY_HEADER_BYTES = 4_096  # a page, so that parts of whole pages do not share one


@dataclass(frozen=True)
class Chunk:
    """Rows [n] of a part: what is stored of each, in the order of the input."""

    first_row: int
    ids: list[str | None]
    embeddings: NDArray[Any]  # [n, width]
    tokens: NDArray[np.int32]  # -1: not known
    truncated: NDArray[np.bool_]
    errors: list[str | None]  # a sentence where there is no embedding
    kept: dict[str, list[str | None]]  # other columns of the input

    def __len__(self) -> int:
        return len(self.ids)


class PartWriter(Protocol):
    """Writes one part."""

    def write(self, chunk: Chunk) -> None:
        """Add rows."""
        ...

    def commit(self) -> Path:
        """Put what was written in its place, on disk; returns the file."""
        ...

    def abandon(self) -> None:
        """Close what is open; what was written is not committed."""
        ...


def to_stored(
    vectors: NDArray[np.float32], options: Options
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Embeddings as they are stored [n, width], and which of them are usable [n].

    Cut to ``dimensions``, divided by their L2 norm in float64, and encoded as the service encodes
    its answers (`service.encodings`). An embedding whose norm is 0, infinite or not a number is not
    usable, and is stored as NaN, or as 0 where there is none.
    """
    exact = vectors[:, : options.dimensions].astype(np.float64)
    norms = np.sqrt(np.vecdot(exact, exact))
    usable = (norms > 0) & (norms < np.inf)
    exact[~usable] = 0.0
    exact /= np.where(usable, norms, 1.0)[:, None]
    stored = encode(exact.astype(np.float32), options.dtype)
    stored[~usable] = STORED_TYPES[options.dtype][1]
    return np.ascontiguousarray(stored), usable


def open_writer(output: OutputFolder, part: int) -> PartWriter:
    """The writer of a part, in the format of the output's options."""
    match output.options.format:
        case "parquet":
            return _ParquetWriter(output, part)
        case "jsonl":
            return _JsonLinesWriter(output, part)
        case "npy":
            return _NpyWriter(output, part)


def prepare(output: OutputFolder) -> None:
    """Make what the parts share: for npy the whole file, on room that the disk has set aside."""
    if output.options.format == "npy":
        _allocate_npy(output)


class _FileWriter:
    """A part that is one file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = temporary(path)
        with writing(path):
            self.file: BinaryIO = self._partial.open("wb")

    def commit(self) -> Path:
        with writing(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            rename_into_place(self._partial, self.path)
        return self.path

    def abandon(self) -> None:
        with suppress(OSError):  # what is in the buffer need not fit on the disk
            self.file.close()


class _ParquetWriter(_FileWriter):
    def __init__(self, output: OutputFolder, part: int, *, embeddings: bool = True) -> None:
        name = "part" if embeddings else "rows"
        super().__init__(output.path / f"{name}-{part:06}.parquet")
        self._schema = _schema(output.model, output.options, embeddings=embeddings)
        self._parquet = pq.ParquetWriter(
            self.file,
            self._schema,
            compression={name: "zstd" for name in self._schema.names if name != "embedding"},
            use_dictionary=["error"],
            write_statistics=["row"],
        )

    def write(self, chunk: Chunk) -> None:
        columns = _columns(chunk)
        table = pa.table([columns[n] for n in self._schema.names], schema=self._schema)
        with writing(self.path):
            self._parquet.write_table(table, row_group_size=len(chunk))

    def commit(self) -> Path:
        with writing(self.path):
            self._parquet.close()
        return super().commit()

    def abandon(self) -> None:
        with suppress(OSError):  # as there
            self._parquet.close()
        self._parquet.is_open = False  # or it would close the file again when it is collected
        super().abandon()


def _schema(model: Model, options: Options, *, embeddings: bool) -> pa.Schema:
    kind = pa.list_(ARROW_TYPES[options.dtype], options.stored_width(model))
    fields = [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.string()),
        *([pa.field("embedding", kind)] if embeddings else []),
        pa.field("tokens", pa.int32()),
        pa.field("truncated", pa.bool_()),
        pa.field("error", pa.string()),
        *(pa.field(name, pa.string()) for name in options.keep),
    ]
    metadata = {
        "s2sent.model": model.name,
        "s2sent.fingerprint": model.fingerprint,
        "s2sent.dtype": options.dtype,
        "s2sent.scale": repr(int8_scale(options.components(model)))
        if options.dtype == "int8"
        else "",
        "s2sent.dimensions": str(options.components(model)),
        "s2sent.depth": str(options.depth or ""),
        "s2sent.prompt_name": options.prompt_name or "",
    }
    if options.prompt_name == "":  # in parts where none is named it is empty, too
        metadata["s2sent.prompt"] = model.prompts.get("", "")
    return pa.schema(fields, metadata=metadata)


def _columns(chunk: Chunk) -> dict[str, Any]:
    """The chunk as Arrow arrays; the embeddings are not copied."""
    width = chunk.embeddings.shape[1]
    missing = np.array([error is not None for error in chunk.errors])
    unknown = chunk.tokens < 0
    values = pa.array(chunk.embeddings.reshape(-1))
    rows = np.arange(chunk.first_row, chunk.first_row + len(chunk), dtype=np.int64)
    return {
        "row": pa.array(rows),
        "id": pa.array(chunk.ids, type=pa.string()),
        "embedding": pa.FixedSizeListArray.from_arrays(values, width, mask=pa.array(missing)),
        "tokens": pa.array(chunk.tokens, mask=unknown),
        "truncated": pa.array(chunk.truncated, mask=unknown),
        "error": pa.array(chunk.errors, type=pa.string()),
        **{name: pa.array(values, type=pa.string()) for name, values in chunk.kept.items()},
    }


class _JsonLinesWriter(_FileWriter):
    def __init__(self, output: OutputFolder, part: int) -> None:
        super().__init__(output.path / f"part-{part:06}.jsonl")

    def write(self, chunk: Chunk) -> None:
        # orjson writes no float16, and every float16 is a float32.
        vectors = chunk.embeddings
        vectors = vectors.astype(np.float32) if vectors.dtype == np.float16 else vectors
        lines = []
        for at, (row_id, error) in enumerate(zip(chunk.ids, chunk.errors, strict=True)):
            known = chunk.tokens[at] >= 0
            line = {
                "row": chunk.first_row + at,
                "id": row_id,
                "embedding": vectors[at] if error is None else None,
                "tokens": int(chunk.tokens[at]) if known else None,
                "truncated": bool(chunk.truncated[at]) if known else None,
                "error": error,
                **{name: values[at] for name, values in chunk.kept.items()},
            }
            option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
            lines.append(orjson.dumps(line, option=option))
        with writing(self.path):
            self.file.writelines(lines)


class _NpyWriter:
    """Rows of ``embeddings.npy``, and their other columns in a Parquet file of the part."""

    def __init__(self, output: OutputFolder, part: int) -> None:
        self._path = output.path / EMBEDDINGS
        kind = np.dtype(STORED_TYPES[output.options.dtype][0])
        self._row_bytes = kind.itemsize * output.options.stored_width(output.model)
        self._rows = _ParquetWriter(output, part, embeddings=False)

    def write(self, chunk: Chunk) -> None:
        """Map only what is written, so that the pages of other rows are not kept in memory."""
        start = NPY_HEADER_BYTES + chunk.first_row * self._row_bytes
        offset = start - start % mmap.ALLOCATIONGRANULARITY
        content = chunk.embeddings.tobytes()
        with writing(self._path), self._path.open("r+b") as file:
            length = start - offset + len(content)
            with mmap.mmap(file.fileno(), length, offset=offset) as pages:
                pages[start - offset :] = content
                pages.flush()
        self._rows.write(chunk)

    def commit(self) -> Path:
        with writing(self._path), self._path.open("r+b") as file:
            os.fsync(file.fileno())
        return self._rows.commit()

    def abandon(self) -> None:
        self._rows.abandon()


def _allocate_npy(output: OutputFolder) -> None:
    path = output.path / EMBEDDINGS
    width = output.options.stored_width(output.model)
    kind = np.dtype(STORED_TYPES[output.options.dtype][0])
    header = _npy_header(kind, (output.rows, width))
    size = len(header) + output.rows * width * kind.itemsize
    if not path.exists():
        partial = temporary(path)
        with writing(path):
            try:
                with partial.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, size)
                    file.write(header)
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    os.link(partial, path)
                except FileExistsError:
                    pass  # another shard was faster
                except OSError:  # a file system without hard links
                    os.replace(partial, path)
            finally:
                partial.unlink(missing_ok=True)
    if path.stat().st_size != size:
        raise OutputError(
            f"{path} has {path.stat().st_size} bytes instead of {size}. Begin again with"
            " --overwrite."
        )


def _npy_header(kind: "np.dtype[Any]", shape: tuple[int, int]) -> bytes:
    """The header of format 1.0, padded to NPY_HEADER_BYTES (numpy.lib.format)."""
    text = f"{{'descr': {kind.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    prefix = b"\x93NUMPY\x01\x00" + (NPY_HEADER_BYTES - 10).to_bytes(2, "little")
    return prefix + text.encode().ljust(NPY_HEADER_BYTES - 11) + b"\n"
