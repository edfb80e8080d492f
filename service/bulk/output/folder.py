"""The output folder: its manifest, the record of every committed part, locks, and the end mark.

    _manifest.json       model, options and input; at the end also every part
    part-000000.parquet  rows 0 to rows_per_shard - 1, and so on (npy: embeddings.npy and the rest)
    _parts/000000.json   the record that commits part 0: its rows, size and sha256
    _SUCCESS             written last

Every file is written under a temporary name, flushed to disk and renamed, and the record follows
its part, so whatever has a record is complete. Parts are numbered by their rows, not by who writes
them: any division into shards, and any number of interruptions, gives the same bytes.
"""

import errno
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from service.bulk.input.files import InputFile
from service.bulk.job import Model, Options, OutputError, Shard
from service.bulk.output.atomic_files import flush_folder, temporary, write_file, writing

MANIFEST, SUCCESS, PARTS, LOCK = "_manifest.json", "_SUCCESS", "_parts", ".lock"
EMBEDDINGS = "embeddings.npy"
OURS = ("part-*", "rows-*", EMBEDDINGS, SUCCESS, MANIFEST, ".*.tmp")
FORMAT_VERSION = 1
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # file systems without flock(2)


@dataclass(frozen=True)
class PartRecord:
    """A committed part."""

    part: int
    file: str
    first_row: int
    rows: int
    bytes: int
    sha256: str
    tokens: int  # -1: not known
    truncated: int
    failed: int


class OutputFolder:
    """One output, as one run sees it. `begin` comes first."""

    def __init__(self, path: Path, model: Model, options: Options, inputs: list[InputFile]) -> None:
        self.path = path
        self.model = model
        self.options = options
        self.inputs = inputs
        self.rows = sum(file.rows for file in inputs)
        self.parts = -(-self.rows // options.rows_per_shard)
        self._locks: list[int] = []

    def begin(self, shard: Shard, *, resume: bool, overwrite: bool) -> None:
        """Create the folder, or go on in it; raises OutputError where it must not be touched."""
        with writing(self.path):
            (self.path / PARTS).mkdir(parents=True, exist_ok=True)
        self._lock(shard)
        if overwrite:
            self._clear()
        if (self.path / MANIFEST).exists():
            if not resume:
                raise OutputError(
                    f"{self.path} holds a run with {len(self.committed())} of {self.parts} parts"
                    " committed. Add --resume to go on or --overwrite to begin again."
                )
        elif foreign := self._foreign():
            raise OutputError(
                f"{self.path} holds {foreign} and no {MANIFEST} of s2sent embed. Name another"
                " folder."
            )
        else:
            self._create_manifest()
        self._require_same()
        if shard.count == 1:
            self._remove_temporaries()

    def join(self) -> None:
        """Take part in a run that another process has begun; raises OutputError unless it is it."""
        self._require_same()

    def discard_unfinished(self) -> None:
        """Remove the files that this process has begun and not committed."""
        for file in self.path.glob(temporary(self.path / "*").name):
            file.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the locks back."""
        while self._locks:
            os.close(self._locks.pop())

    def rows_of(self, part: int) -> range:
        """The numbers of the rows of a part."""
        size = self.options.rows_per_shard
        return range(part * size, min((part + 1) * size, self.rows))

    def commit(self, record: PartRecord) -> None:
        """Record a part that is on disk under its name."""
        content = orjson.dumps(asdict(record), option=orjson.OPT_APPEND_NEWLINE)
        write_file(self._record_path(record.part), content)

    def committed(self) -> set[int]:
        """The numbers of the parts that are committed."""
        with os.scandir(self.path / PARTS) as entries:
            names = [entry.name for entry in entries]
        return {int(n[:-5]) for n in names if n.endswith(".json") and n[:-5].isdecimal()}

    def record(self, part: int) -> dict[str, Any]:
        """The record of a committed part, as JSON has it."""
        record: dict[str, Any] = json.loads(self._record_path(part).read_bytes())
        return record

    @property
    def is_complete(self) -> bool:
        """Whether the end mark is there."""
        return (self.path / SUCCESS).exists()

    def finish(self) -> bool:
        """Write the end mark if every part is committed; returns whether that is so."""
        if self.is_complete:
            return True
        if len(self.committed()) < self.parts:
            return False
        records = [self.record(part) for part in range(self.parts)]
        for record in records:
            self._require_there(record)
        write_file(self.path / MANIFEST, _as_bytes(self._manifest() | {"parts": records}))
        write_file(self.path / SUCCESS, b"")
        if self._is_alone():
            self._remove_temporaries()
        return True

    def _record_path(self, part: int) -> Path:
        return self.path / PARTS / f"{part:06}.json"

    def _require_there(self, record: dict[str, Any]) -> None:
        path = self.path / record["file"]
        size = path.stat().st_size if path.exists() else 0
        if size != record["bytes"]:
            raise OutputError(
                f"{path} has {size} bytes and had {record['bytes']} when it was committed. Delete"
                f" {self._record_path(record['part'])} and run the same command with --resume."
            )

    def _manifest(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "model": {"name": self.model.name, "fingerprint": self.model.fingerprint},
            "options": asdict(self.options),
            "input": [file.as_json() for file in self.inputs],
            "rows": self.rows,
        }

    def _create_manifest(self) -> None:
        """Write the manifest unless another shard has; the first one counts."""
        path = self.path / MANIFEST
        own = path.with_name(f"{MANIFEST}.{socket.gethostname()}-{os.getpid()}.begin")
        try:
            write_file(own, _as_bytes(self._manifest()))
            os.link(own, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            os.replace(own, path)
        finally:
            own.unlink(missing_ok=True)
        flush_folder(self.path)

    def _require_same(self) -> None:
        path = self.path / MANIFEST
        try:
            there, ours = json.loads(path.read_bytes()), self._manifest()
        except (OSError, ValueError):
            raise OutputError(f"{path} cannot be read. Begin again with --overwrite.") from None
        for name, before, now in _differences(there, ours):
            raise OutputError(
                f"{self.path} was begun with {name} {before} and this run has {now}. Give what it"
                " was begun with, --overwrite it or name another folder."
            )

    def _foreign(self) -> str:
        """A file in the folder that no run without a manifest has, or nothing."""
        if records := self.committed():
            return f"{PARTS}/{min(records):06}.json"
        known = {p.name for pattern in OURS for p in self.path.glob(pattern)} | {PARTS}
        names = {p.name for p in self.path.iterdir() if not p.name.startswith((LOCK, MANIFEST))}
        return min(names - known, default="")

    def _clear(self) -> None:
        if not (self.path / MANIFEST).exists() and (foreign := self._foreign()):
            raise OutputError(
                f"{self.path} holds {foreign} and no {MANIFEST} of s2sent embed, so --overwrite"
                " leaves it alone. Name another folder."
            )
        with writing(self.path):
            (self.path / SUCCESS).unlink(missing_ok=True)
            shutil.rmtree(self.path / PARTS)  # the records first: without them nothing counts
            (self.path / PARTS).mkdir()
            for pattern in OURS:
                for file in self.path.glob(pattern):
                    file.unlink(missing_ok=True)

    def _remove_temporaries(self) -> None:
        for folder in (self.path, self.path / PARTS):
            for file in folder.glob(".*.tmp"):
                file.unlink(missing_ok=True)

    def _lock(self, shard: Shard) -> None:
        """A lone run has the folder for itself; shards share it, and each has its own name."""
        self._flock(LOCK, fcntl.LOCK_EX if shard.count == 1 else fcntl.LOCK_SH)
        if shard.count > 1:
            self._flock(f"{LOCK}-{shard.index}-of-{shard.count}", fcntl.LOCK_EX)

    def _is_alone(self) -> bool:
        """Whether no other shard has the folder, whose temporary files may be about to be named."""
        try:
            fcntl.flock(self._locks[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _flock(self, name: str, kind: int) -> None:
        descriptor = os.open(self.path / name, os.O_RDWR | os.O_CREAT, 0o666)
        self._locks.append(descriptor)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            raise OutputError(
                f"{self.path} is being written by another process ({holder or 'unknown'}). Wait"
                " for it, or name another folder."
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        with suppress(OSError):
            os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _as_bytes(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _differences(there: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What two manifests differ in: a name and both values."""
    if there.get("format_version") != FORMAT_VERSION:
        yield "format_version", there.get("format_version"), FORMAT_VERSION
    models = there.get("model", {}), ours["model"]
    before, now = (f"{m.get('name')} ({str(m.get('fingerprint'))[:16]})" for m in models)
    if models[0].get("fingerprint") != models[1]["fingerprint"]:
        yield "the model", before, now
    for name, value in ours["options"].items():
        if there.get("options", {}).get(name) != value:
            yield f"--{name.replace('_', '-')}", there.get("options", {}).get(name), value
    files_before, files_now = there.get("input", []), ours["input"]
    if len(files_before) != len(files_now):
        yield "input files,", len(files_before), len(files_now)
    for old, new in zip(files_before, files_now, strict=False):
        if any(old.get(key) != new[key] for key in ("bytes", "sha256", "rows", "format")):
            yield "the input", _describe(old), _describe(new)


def _describe(file: dict[str, Any]) -> str:
    return f"{file.get('name')} ({file.get('bytes')} bytes, sha256 {str(file.get('sha256'))[:16]})"
