"""The output folder: its manifest, the record of every committed part, locks, and the end mark.

    _manifest.json       model, options and input; at the end also every part
    part-000000.parquet  rows 0 to rows_per_shard - 1, and so on (npy: embeddings.npy and the rest)
    _parts/000000.json   the record that commits part 0: its rows, size and sha256
    _SUCCESS             written last

Every file is written under a temporary name, flushed to disk and renamed, and the record follows
its part, so whatever has a record is complete. Parts are numbered by their rows, not by who writes
them: any division into shards, and any number of interruptions, gives the same bytes.

The manifest is what makes a folder one of ours: other programs name files part-* and _SUCCESS too.
"""

import json
import os
import re
import shutil
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import orjson

from s2sent.service.bulk.input.files import InputFile
from s2sent.service.bulk.job import Model, Options, OutputError, Shard
from s2sent.service.bulk.output.atomic_files import flush_folder, temporary, write_file, writing
from s2sent.service.bulk.output.locks import LOCK, FolderLocks
from s2sent.service.bulk.output.manifest import describe_run, require_same

MANIFEST, SUCCESS, PARTS = "_manifest.json", "_SUCCESS", "_parts"
EMBEDDINGS = "embeddings.npy"
WRITTEN = re.compile(
    rf"part-\d{{6,}}\.(parquet|jsonl)|rows-\d{{6,}}\.parquet|{re.escape(EMBEDDINGS)}"
)
# What a run that ended at once can leave: no part is begun before the manifest is there.
LEFTOVER = re.compile(
    rf"{re.escape(MANIFEST)}\..*\.begin"
    rf"|\.({WRITTEN.pattern}|\d{{6,}}\.json|{re.escape(MANIFEST)}|{SUCCESS})(\..*)?\.tmp"
)


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
        self._locks = FolderLocks(path)

    def begin(self, shard: Shard, *, resume: bool, overwrite: bool) -> None:
        """Create the folder, or go on in it; raises OutputError where it must not be touched."""
        self._require_inputs_elsewhere()
        self._require_ours()
        with writing(self.path):
            (self.path / PARTS).mkdir(parents=True, exist_ok=True)
        self._locks.take(shard)
        if overwrite:
            self._clear()
        if not (self.path / MANIFEST).exists():
            self._create_manifest()
        elif not resume:
            raise OutputError(
                f"{self.path} holds a run with {len(self.committed())} of {self.parts} parts"
                " committed. Add --resume to go on or --overwrite to begin again."
            )
        self.join()
        self._check_committed()
        if shard.count == 1:
            self._remove_leftovers()

    def join(self) -> None:
        """Take part in a run that another process has begun; raises OutputError unless it is it."""
        require_same(self.path / MANIFEST, self._manifest())

    def discard_unfinished(self) -> None:
        """Remove the files that this process has begun and not committed."""
        with writing(self.path):
            for file in self.path.glob(temporary(self.path / "*").name):
                file.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the locks back."""
        self._locks.release()

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

    def record(self, part: int) -> PartRecord:
        """The record of a committed part; raises OutputError for one that cannot be read."""
        path = self._record_path(part)
        record: PartRecord | None = None
        with suppress(OSError, ValueError, TypeError):  # no JSON, or JSON of another shape
            record = PartRecord(**json.loads(path.read_bytes()))
        if not record or any(type(getattr(record, f.name)) is not f.type for f in fields(record)):
            raise OutputError(
                f"{path} is no record of a part. Delete it and run the same command with --resume."
            )
        return record

    @property
    def failed(self) -> int:
        """Rows without an embedding in the committed parts."""
        return sum(self.record(part).failed for part in self.committed())

    @property
    def is_complete(self) -> bool:
        """Whether the end mark is there, under which `begin` has found every part."""
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
        parts = [asdict(record) for record in records]
        write_file(self.path / MANIFEST, _as_bytes(self._manifest() | {"parts": parts}))
        write_file(self.path / SUCCESS, b"")
        if self._locks.are_alone():
            self._remove_leftovers()
        return True

    def _record_path(self, part: int) -> Path:
        return self.path / PARTS / f"{part:06}.json"

    def _check_committed(self) -> None:
        """Require what is committed of a complete run; take its end mark off where some is not."""
        was_complete = self.is_complete  # before the look at the parts: the mark follows the last
        committed = self.committed()
        path = self.path / EMBEDDINGS
        if committed and self.options.format == "npy" and not path.exists():
            raise OutputError(
                f"{path} is not there, and {len(committed)} parts of it are committed. Copy it"
                " back, or begin again with --overwrite."
            )
        if was_complete:
            for part in sorted(committed):
                self._require_there(self.record(part))
            if len(committed) < self.parts:
                with writing(self.path):
                    (self.path / SUCCESS).unlink(missing_ok=True)

    def _require_there(self, record: PartRecord) -> None:
        path = self.path / record.file
        size = path.stat().st_size if path.exists() else None
        if size != record.bytes:
            found = "is missing" if size is None else f"has {size} bytes"
            raise OutputError(
                f"{path} {found} and had {record.bytes} bytes when it was committed. Delete"
                f" {self._record_path(record.part)} and run the same command with --resume."
            )

    def _manifest(self) -> dict[str, Any]:
        return describe_run(self.model, self.options, self.inputs)

    def _create_manifest(self) -> None:
        """Write the manifest unless another shard has; the first one counts."""
        path = self.path / MANIFEST
        own = path.with_name(f"{MANIFEST}.{socket.gethostname()}-{os.getpid()}.begin")
        with writing(path):
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

    def _require_inputs_elsewhere(self) -> None:
        output = self.path.resolve()
        for file in self.inputs:
            # A link to the file, and the file itself.
            folders = file.source.parent.resolve(), file.source.resolve().parent
            if any(folder.is_relative_to(output) for folder in folders):
                raise OutputError(
                    f"{file.name} is an input and lies in the output folder {self.path}. Name"
                    " another folder."
                )

    def _require_ours(self) -> None:
        """Raise OutputError where the folder has no manifest and files that a run has after it."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise OutputError(f"--output {self.path} is no folder. Name another one.")
        with writing(self.path):
            names = {path.name for path in self.path.iterdir()}
            if PARTS in names and (self.path / PARTS).is_dir():
                names.remove(PARTS)
                names |= {f"{PARTS}/{each.name}" for each in (self.path / PARTS).iterdir()}
        strangers = [
            name
            for name in names
            if not (name.startswith(LOCK) or LEFTOVER.fullmatch(name.removeprefix(f"{PARTS}/")))
        ]
        # Another shard may have begun meanwhile, but not before its manifest was there.
        if strangers and not (self.path / MANIFEST).exists():
            raise OutputError(
                f"{self.path} holds {min(strangers)} and no {MANIFEST} of s2sent embed, so it is"
                " left alone. Name another folder."
            )

    def _clear(self) -> None:
        """Delete a run, the marks of its parts first and of its being ours last."""
        with writing(self.path):
            (self.path / SUCCESS).unlink(missing_ok=True)
            shutil.rmtree(self.path / PARTS)
            (self.path / PARTS).mkdir()
            self._remove(WRITTEN)
            self._remove_leftovers()
            (self.path / MANIFEST).unlink(missing_ok=True)

    def _remove_leftovers(self) -> None:
        self._remove(LEFTOVER)

    def _remove(self, names: re.Pattern[str]) -> None:
        with writing(self.path):
            for folder in (self.path, self.path / PARTS):
                for file in folder.iterdir():
                    if names.fullmatch(file.name):
                        file.unlink(missing_ok=True)


def _as_bytes(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
