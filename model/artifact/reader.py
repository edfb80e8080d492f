"""Opening an artifact folder: every file is checked against the manifest before it is used.

Only the standard library is imported. `model.artifact.manifest` describes the folder,
`model.artifact.errors` draws the errors.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Self

from s2sent.model.artifact.canary import Canary
from s2sent.model.artifact.errors import (
    REEXPORT,
    ArtifactError,
    ChecksumMismatch,
    MalformedManifest,
    MissingFile,
    UnsafeFile,
)
from s2sent.model.artifact.graph_policy import GraphRefused, check_graph
from s2sent.model.artifact.manifest import (
    CANARY,
    CONFIG,
    MANIFEST,
    MODEL,
    REQUIRED_FILES,
    TOKENIZER,
    UNPADDED_MODEL,
    WEIGHTS,
    FileEntry,
    Manifest,
    parse_object,
)
from s2sent.model.artifact.weights_file import weights_of

KEPT_FILES = (TOKENIZER, CONFIG, CANARY)  # small, and read again while the artifact is in use
MAX_MANIFEST_BYTES = 16_777_216


@dataclass(frozen=True)
class Artifact:
    """An artifact whose files all match the manifest.

    fingerprint: the manifest's sha256 in hex, which covers the hash of every other file.
    contents: the verified KEPT_FILES.
    graphs, weights: the verified graph, and its weights where they are in another file, if `open`
        kept them and until `take_graph` and `take_weights` take them.
    """

    path: Path
    manifest: Manifest
    fingerprint: str = ""
    contents: dict[str, bytes] = field(default_factory=dict, repr=False)
    graphs: list[bytes] = field(default_factory=list, repr=False, compare=False)
    weights: list[bytes] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def open(cls, path: str | Path, *, keep_graph: bool = False) -> Self:
        """Read and verify the folder at ``path``; raises ArtifactError.

        With ``keep_graph`` the first `take_graph` returns the graph that was verified here, and
        need not read the file again.
        """
        folder = Path(path)
        content = _read_manifest(folder)
        try:
            manifest = Manifest.from_json(content)
        except ArtifactError as error:
            raise type(error)(f"{folder}: {error}") from None
        if missing := sorted(set(REQUIRED_FILES) - set(manifest.files)):
            raise MalformedManifest(
                f"{folder}: {MANIFEST} does not list {', '.join(missing)}. {REEXPORT}"
            )
        opened = cls(folder, manifest, hashlib.sha256(content).hexdigest(), {})
        small = sorted({*manifest.files} - {MODEL, WEIGHTS})
        kept = {name: opened.read(name) for name in small}
        graph, weights = opened.take_graph(), opened.take_weights()
        _require_safe(folder / MODEL, graph, weights)
        for name in _other_graphs(manifest):
            if name not in kept:
                raise MalformedManifest(f"{folder}: {MANIFEST} does not list {name}. {REEXPORT}")
            _require_safe(folder / name, kept[name], weights)
        if keep_graph:
            opened.graphs.append(graph)
            opened.weights.extend([weights] if weights is not None else [])
        return dataclasses.replace(opened, contents={name: kept[name] for name in KEPT_FILES})

    def read(self, name: str) -> bytes:
        """The content of a file the manifest lists, verified as it is read; raises ArtifactError.

        Use these bytes, not the path: the file may have been replaced since. Nothing is verified
        while an artifact is being written, when its manifest lists no files yet.
        """
        if name in self.contents:
            return self.contents[name]
        if not self.manifest.files:
            return (self.path / name).read_bytes()
        with _opened(self.path, name) as file:
            entry = self.manifest.files[name]
            content = file.read(_limit(file, entry))
            _require_same(file, content, entry)
            return content

    def take_graph(self) -> bytes:
        """The graph, verified as in `read`."""
        return self.graphs.pop() if self.graphs else self.read(MODEL)

    def take_weights(self) -> bytes | None:
        """The weights of a graph that has them in another file, as in `take_graph`; or None."""
        if self.weights:
            return self.weights.pop()
        files = self.manifest.files
        has_any = WEIGHTS in files if files else (self.path / WEIGHTS).is_file()
        return self.read(WEIGHTS) if has_any else None

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
        return parse_object(self.read(CONFIG), CONFIG)

    @cached_property
    def canary(self) -> Canary:
        """The text and embedding that check a loaded encoder; raises MalformedManifest."""
        return Canary.from_json(self.read(CANARY), self.manifest.dim)


def graph_at(depth: int | None = None, *, unpadded: bool = False) -> str:
    """The graph that runs to ``depth`` where each has one of its own; None for all blocks.

    With ``unpadded`` that one of its forms whose attention has no padding.
    """
    if unpadded:
        return UNPADDED_MODEL if depth is None else f"onnx/unpadded_depth_{depth}.onnx"
    return MODEL if depth is None else f"onnx/depth_{depth}.onnx"


def _other_graphs(manifest: Manifest) -> list[str]:
    """The graphs besides the model's own that an artifact for a GPU must have."""
    depths = manifest.depths if manifest.is_for_gpu else ()
    names = [graph_at(depth) for depth in depths]
    if UNPADDED_MODEL in manifest.files:
        names += [graph_at(depth, unpadded=True) for depth in (None, *depths)]
    return names


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
    """Open a file of the folder; raises MissingFile, or UnsafeFile for one outside the folder."""
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


def _limit(file: BinaryIO, entry: FileEntry) -> int:
    """The bytes to read of a file: never many more than it has, or than can be right."""
    return min(entry.bytes, os.fstat(file.fileno()).st_size) + 1


def _require_same(file: BinaryIO, content: bytes, entry: FileEntry) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if FileEntry(digest, len(content)) != entry:
        size = os.fstat(file.fileno()).st_size
        raise ChecksumMismatch(
            f"{file.name} has {size} bytes and sha256 {digest[:12]}..., the manifest says"
            f" {entry.bytes} and {entry.sha256[:12]}... Copy the artifact again, or export it anew."
        )


def _unreadable(path: Path, error: OSError) -> MissingFile:
    reason = (error.strerror or type(error).__name__).lower()
    may_not = isinstance(error, PermissionError)
    cure = "Let this user read it" if may_not else "Copy the artifact again"
    return MissingFile(f"{path} cannot be read: {reason}. {cure}.")


def _require_safe(path: Path, content: bytes, weights: bytes | None) -> None:
    try:
        check_graph(content, weights_apart=weights is not None)
        if weights is not None:
            list(weights_of(content, memoryview(weights)))
    except GraphRefused as error:
        raise UnsafeFile(f"{path} may not be served: {error}. {REEXPORT}") from None
