"""The artifact: a folder that holds one exported encoder, described by its manifest.

    manifest.json        what it is, how it was made, how it scored, the sha256 of every file
    onnx/model.onnx      int64 input_ids, attention_mask[, token_type_ids] -> float32 [n, dim]
    tokenizer.json       the tokenizer, as the tokenizers library reads it
    config.json          the backbone's configuration
    canary.json          one text and its embedding, to prove a loaded encoder right

Writing and opening are the two ends of a contract between programs that never meet: the exporter
writes a folder that either opens or does not exist, and opening trusts nothing it has not hashed.
Only the standard library is imported here.

ArtifactError
├── MissingFile          the folder, the manifest or a listed file is not there
├── MalformedManifest    the manifest is not what this version of the format says
├── UnsupportedSchema    the manifest has a schema_version this program does not know
└── ChecksumMismatch     a file differs from what was exported
"""

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

SCHEMA_VERSION = 1

MANIFEST = "manifest.json"
MODEL = "onnx/model.onnx"
TOKENIZER = "tokenizer.json"
CONFIG = "config.json"
CANARY = "canary.json"
REQUIRED_FILES = (MODEL, TOKENIZER, CONFIG, CANARY)

REEXPORT = "Export the checkpoint again with s2sent-train export."


class ArtifactError(Exception):
    """A folder that cannot be used as an artifact; the message names the file and the cure."""


class MissingFile(ArtifactError):
    """The folder, its manifest or a file the manifest lists is not there."""


class MalformedManifest(ArtifactError):
    """The manifest cannot be read as this version of the format."""


class UnsupportedSchema(ArtifactError):
    """The manifest was written for another version of the format."""


class ChecksumMismatch(ArtifactError):
    """A file is not the one that was exported."""


@dataclass(frozen=True)
class FileEntry:
    """What the manifest knows of one file: its sha256 in hex and its size in bytes."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Canary:
    """One text and its L2-normalised embedding [dim], computed by torch at export."""

    text: str
    embedding: list[float]


@dataclass(frozen=True)
class Manifest:
    """Everything a reader of the artifact needs to know besides the files themselves.

    ``selector`` is the configuration the module was built with, None where there is no selector,
    and ``pooling`` is then all that stands behind the backbone. ``training`` is the recipe with its
    seed and corpus hash, ``scores`` the evaluation by task, ``parity`` the export's comparison
    with torch, ``fused`` the count of each fused operator in the graph. ``depths`` are the blocks
    after which the encoder can stop early; manifests from before it have none.
    """

    name: str
    dim: int
    max_seq_length: int
    pooling: str
    normalize: bool
    precision: str
    inputs: tuple[str, ...]
    selector: dict[str, Any] | None
    backbone: dict[str, Any]
    prompts: dict[str, str]
    training: dict[str, Any]
    scores: dict[str, Any]
    parity: dict[str, Any]
    fused: dict[str, int]
    versions: dict[str, str]
    files: dict[str, FileEntry]
    depths: tuple[int, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """The manifest as indented JSON, ending in a newline."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a manifest; raises MalformedManifest or UnsupportedSchema."""
        fields = _parse_object(text)
        version = fields.get("schema_version")
        if version != SCHEMA_VERSION:
            raise UnsupportedSchema(
                f"{MANIFEST} has schema_version {version!r}; this program reads {SCHEMA_VERSION}."
                f" Use a matching version of s2sent. {REEXPORT}"
            )
        types = get_type_hints(cls)
        fields = {"depths": []} | fields
        if wrong := sorted(set(types) ^ set(fields)):
            raise MalformedManifest(
                f"{MANIFEST} misses or does not know the fields {', '.join(wrong)}. {REEXPORT}"
            )
        for name, hint in types.items():
            kinds = _json_kinds(hint)
            if type(fields[name]) not in kinds:
                names = " or ".join(kind.__name__ for kind in kinds)
                raise MalformedManifest(
                    f"{MANIFEST}: {name} must be {names}, got {fields[name]!r}. {REEXPORT}"
                )
        return cls(
            **fields
            | {name: tuple(fields[name]) for name in ("inputs", "depths")}
            | {"files": _parse_files(fields["files"])}
        )


@dataclass(frozen=True)
class Artifact:
    """An artifact whose every file was found to be the one the manifest describes."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read and verify the folder at ``path``; raises ArtifactError."""
        folder = Path(path)
        manifest_path = folder / MANIFEST
        try:
            text = manifest_path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise MissingFile(
                f"{manifest_path} is not there, so {folder} is not an artifact. {REEXPORT}"
            ) from None
        except UnicodeDecodeError as error:
            raise MalformedManifest(f"{manifest_path} is not UTF-8 text. {REEXPORT}") from error
        manifest = Manifest.from_json(text)
        if missing := sorted(set(REQUIRED_FILES) - set(manifest.files)):
            raise MalformedManifest(f"{MANIFEST} does not list {', '.join(missing)}. {REEXPORT}")
        for name, entry in manifest.files.items():
            _verify(folder / name, entry)
        return cls(folder, manifest)

    @property
    def onnx_path(self) -> Path:
        """The ONNX graph."""
        return self.path / MODEL

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer."""
        return self.path / TOKENIZER

    @cached_property
    def config(self) -> dict[str, Any]:
        """The backbone's configuration."""
        return _parse_object((self.path / CONFIG).read_text(encoding="utf-8"))

    @cached_property
    def canary(self) -> Canary:
        """The text and embedding that prove a loaded encoder right."""
        return Canary(**_parse_object((self.path / CANARY).read_text(encoding="utf-8")))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the manifest in hex; it covers the hash of every other file."""
        return hashlib.sha256((self.path / MANIFEST).read_bytes()).hexdigest()


@contextmanager
def staged(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary folder beside ``target`` to fill, and put it in place when the block ends.

    The block must finish with `seal`. An exception, or a process killed half-way, leaves ``target``
    as it was. Raises ArtifactError when ``target`` exists and ``overwrite`` is false.
    """
    if target.exists() and not overwrite:
        raise ArtifactError(f"{target} exists. Choose another folder or allow overwriting.")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        yield partial
        _replace(target, partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def seal(folder: Path, manifest: Manifest) -> Artifact:
    """Hash every file in ``folder``, write the manifest last, and open the result."""
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    entries = {name: _describe(folder / name) for name in names if name != MANIFEST}
    _write_manifest(folder, dataclasses.replace(manifest, files=entries))
    return Artifact.open(folder)


def record_scores(artifact: Artifact, scores: Mapping[str, Any]) -> Artifact:
    """Replace the manifest's scores, in place and atomically; returns the artifact reopened."""
    manifest = dataclasses.replace(artifact.manifest, scores=dict(scores))
    _write_manifest(artifact.path, manifest)
    return Artifact.open(artifact.path)


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    partial = folder / f".{MANIFEST}.partial"
    with partial.open("w", encoding="utf-8") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / MANIFEST)


def _replace(target: Path, partial: Path) -> None:
    """Move ``partial`` to ``target``; the old folder is set aside first and removed last."""
    partial.chmod(0o755)  # mkdtemp makes it private
    if not target.exists():
        partial.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    target.rename(old / target.name)
    partial.rename(target)
    shutil.rmtree(old)


def _describe(path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(digest, os.fstat(file.fileno()).st_size)


def _verify(path: Path, entry: FileEntry) -> None:
    if not path.is_file():
        raise MissingFile(f"{path} is listed in the manifest and is not there. {REEXPORT}")
    found = _describe(path)
    if found != entry:
        raise ChecksumMismatch(
            f"{path} has {found.bytes} bytes and sha256 {found.sha256[:12]}..., the manifest says"
            f" {entry.bytes} and {entry.sha256[:12]}... Copy the artifact again, or export it anew."
        )


def _json_kinds(hint: Any) -> list[type]:
    """The types that JSON gives a field of this annotation."""
    alternatives = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kinds = [get_origin(alternative) or alternative for alternative in alternatives]
    return [list if kind is tuple else kind for kind in kinds]


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise MalformedManifest(f"{MANIFEST} is not JSON: {error}. {REEXPORT}") from error
    if not isinstance(value, dict):
        raise MalformedManifest(f"{MANIFEST} must hold one object. {REEXPORT}")
    return value


def _parse_files(files: Mapping[str, Any]) -> dict[str, FileEntry]:
    entries = {}
    for name, entry in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or name == MANIFEST:
            raise MalformedManifest(
                f"{MANIFEST} lists {name!r}, which does not stay inside the artifact. {REEXPORT}"
            )
        try:
            entries[name] = FileEntry(str(entry["sha256"]), int(entry["bytes"]))
        except (TypeError, KeyError, ValueError):
            raise MalformedManifest(
                f"{MANIFEST}: files[{name!r}] needs sha256 and bytes. {REEXPORT}"
            ) from None
    return entries
