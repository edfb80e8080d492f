"""The artifact: a folder that holds one exported encoder, described by its manifest.

    manifest.json        what it is, how it was made, how it scored, the sha256 of every file
    onnx/model.onnx      int64 input_ids, attention_mask[, token_type_ids] -> float32 [n, dim]
    tokenizer.json       the tokenizer, as the tokenizers library reads it
    config.json          the backbone's configuration
    canary.json          one text and its embedding, to prove a loaded encoder right

Writing and opening are the two ends of a contract between programs that never meet: the exporter
writes a folder that either opens or does not exist, and opening trusts nothing it has not hashed.
Only the standard library is needed here.

ArtifactError
├── MissingFile          the folder, the manifest or a listed file is not there
├── MalformedManifest    the manifest is not what this version of the format says
├── UnsupportedSchema    the manifest has a schema_version this program does not know
├── ChecksumMismatch     a file differs from what was exported
└── UnsafeFile           a file leads out of the folder, or the graph may do more than compute
"""

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import UnionType
from typing import Any, BinaryIO, Self, TypeGuard, get_args, get_origin, get_type_hints

from model.artifact.graph_policy import GraphRefused, check_graph
from model.artifact.sealed_file import MemoryFile

SCHEMA_VERSION = 1

MANIFEST = "manifest.json"
MODEL = "onnx/model.onnx"
TOKENIZER = "tokenizer.json"
CONFIG = "config.json"
CANARY = "canary.json"
REQUIRED_FILES = (MODEL, TOKENIZER, CONFIG, CANARY)
KEPT_FILES = (TOKENIZER, CONFIG, CANARY)  # small, and wanted as long as the artifact is used
MAX_MANIFEST_BYTES = 16_777_216
# What manifests from before these fields say by leaving them out.
ADDED_FIELDS: dict[str, Any] = {"depths": [], "packed": False}

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


class UnsafeFile(ArtifactError):
    """A file is no part of the folder, or is a graph that may not be served."""


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
    after which the encoder can stop early. ``packed`` says that the blocks work on tokens without
    padding between them (`model.export.packing`). Manifests from before either field have none of
    it.
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
    packed: bool = False
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """The manifest as indented JSON, ending in a newline."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a manifest; raises MalformedManifest or UnsupportedSchema."""
        fields = _parse_object(text, MANIFEST)
        version = fields.get("schema_version")
        if version != SCHEMA_VERSION:
            raise UnsupportedSchema(
                f"{MANIFEST} has schema_version {version!r}; this program reads {SCHEMA_VERSION}."
                f" Use a matching version of s2sent. {REEXPORT}"
            )
        types = get_type_hints(cls)
        fields = ADDED_FIELDS | fields
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
    """An artifact whose every file was found to be the one the manifest describes.

    ``fingerprint`` is the manifest's sha256 in hex, which covers the hash of every other file;
    ``contents`` are the KEPT_FILES as they were verified, and ``graphs`` has the graph where it was
    kept, until it is taken.
    """

    path: Path
    manifest: Manifest
    fingerprint: str = ""
    contents: dict[str, bytes] = field(default_factory=dict, repr=False)
    graphs: list[MemoryFile] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def open(cls, path: str | Path, *, keep_graph: bool = False) -> Self:
        """Read and verify the folder at ``path``; raises ArtifactError.

        ``keep_graph`` is for who will `take_graph`: it need not be read once more.
        """
        folder = Path(path)
        content = _read_manifest(folder)
        manifest = Manifest.from_json(_decode(content, MANIFEST))
        if missing := sorted(set(REQUIRED_FILES) - set(manifest.files)):
            raise MalformedManifest(f"{MANIFEST} does not list {', '.join(missing)}. {REEXPORT}")
        opened = cls(folder, manifest, hashlib.sha256(content).hexdigest(), {})
        kept = {name: opened.read(name) for name in sorted({*manifest.files} - {MODEL})}
        graph = opened.take_graph()
        _require_safe(folder / MODEL, graph.content)
        if keep_graph:
            opened.graphs.append(graph)
        return dataclasses.replace(opened, contents={name: kept[name] for name in KEPT_FILES})

    def read(self, name: str) -> bytes:
        """The content of a file the manifest lists, verified as it is read; raises ArtifactError.

        Use these bytes, not the path: the file behind it may be another one by then. Of an
        artifact that is being made, whose manifest lists nothing yet, there is nothing to verify.
        """
        if name in self.contents:
            return self.contents[name]
        if not self.manifest.files:
            return (self.path / name).read_bytes()
        with _opened(self.path, name) as file:
            entry = self.manifest.files[name]
            content = file.read(entry.bytes + 1)  # never more than what can be right
            _require_same(file, content, entry)
            return content

    def take_graph(self) -> MemoryFile:
        """The graph, verified as `read` does it; the caller has it alone, and closes it."""
        if self.graphs:
            return self.graphs.pop()
        with _opened(self.path, MODEL) as file:
            entry = self.manifest.files.get(MODEL)
            limit = entry.bytes + 1 if entry else os.fstat(file.fileno()).st_size
            graph = MemoryFile(file, limit)
            if entry:
                _require_same(file, graph.content, entry)
            return graph

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
        return _parse_object(_decode(self.read(CONFIG), CONFIG), CONFIG)

    @cached_property
    def canary(self) -> Canary:
        """The text and embedding that prove a loaded encoder right; raises MalformedManifest."""
        fields = _parse_object(_decode(self.read(CANARY), CANARY), CANARY)
        text, embedding = fields.get("text"), fields.get("embedding")
        if not isinstance(text, str) or not _is_vector(embedding, self.manifest.dim):
            raise MalformedManifest(
                f"{CANARY} needs a text and its {self.manifest.dim} numbers. {REEXPORT}"
            )
        return Canary(text, embedding)


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


def _read_manifest(folder: Path) -> bytes:
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFile(
            f"{path} is not there, so {folder} is not an artifact. {REEXPORT}"
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(content) > MAX_MANIFEST_BYTES:
        raise MalformedManifest(
            f"{path} is above the limit of {MAX_MANIFEST_BYTES} bytes. {REEXPORT}"
        )
    return content


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[BinaryIO]:
    """A file of the folder, and no other; what the system refuses becomes MissingFile."""
    path = folder / name
    try:
        if not path.is_file():
            raise MissingFile(f"{path} is listed in the manifest and is not there. {REEXPORT}")
        if not path.resolve().is_relative_to(folder.resolve()):
            raise UnsafeFile(
                f"{path} leads out of the artifact through a link. Copy the files (cp -rL)."
            )
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from None


def _require_same(file: BinaryIO, content: bytes | memoryview, entry: FileEntry) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if FileEntry(digest, len(content)) != entry:
        size = os.fstat(file.fileno()).st_size
        raise ChecksumMismatch(
            f"{file.name} has {size} bytes and sha256 {digest[:12]}..., the manifest says"
            f" {entry.bytes} and {entry.sha256[:12]}... Copy the artifact again, or export it anew."
        )


def _unreadable(path: Path, error: OSError) -> MissingFile:
    reason = (error.strerror or type(error).__name__).lower()
    return MissingFile(f"{path} cannot be read: {reason}. Copy the artifact again.")


def _require_safe(path: Path, content: memoryview) -> None:
    try:
        check_graph(content)
    except GraphRefused as error:
        raise UnsafeFile(f"{path} may not be served: {error}. {REEXPORT}") from None


def _is_vector(value: object, dim: int) -> TypeGuard[list[float]]:
    return isinstance(value, list) and len(value) == dim and {*map(type, value)} <= {int, float}


def _json_kinds(hint: Any) -> list[type]:
    """The types that JSON gives a field of this annotation."""
    alternatives = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kinds = [get_origin(alternative) or alternative for alternative in alternatives]
    return [list if kind is tuple else kind for kind in kinds]


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise MalformedManifest(f"{name} is not UTF-8 text. {REEXPORT}") from None


def _parse_object(text: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError:
        raise MalformedManifest(f"{name} is nested too deep. {REEXPORT}") from None
    except ValueError as error:  # JSONDecodeError, or a number of too many digits
        raise MalformedManifest(f"{name} is not JSON: {error}. {REEXPORT}") from None
    if not isinstance(value, dict):
        raise MalformedManifest(f"{name} must hold one object. {REEXPORT}")
    return value


def _parse_files(files: Mapping[str, Any]) -> dict[str, FileEntry]:
    entries = {}
    for name, entry in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or name == MANIFEST:
            raise MalformedManifest(
                f"{MANIFEST} lists {name!r}, which does not stay inside the artifact. {REEXPORT}"
            )
        match entry:
            case {"sha256": str(digest), "bytes": int(size)} if size >= 0:
                entries[name] = FileEntry(digest, size)
            case _:
                raise MalformedManifest(
                    f"{MANIFEST}: files[{name!r}] needs sha256 and bytes. {REEXPORT}"
                )
    return entries
