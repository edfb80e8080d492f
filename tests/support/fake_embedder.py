"""An embedder without a model for the tests of `s2sent embed`: the vector tells the text."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from s2sent.service.bulk.input.files import scan
from s2sent.service.bulk.job import MAX_FAILED, Embedded, Model, Options, Pending, Shard
from s2sent.service.bulk.output.folder import OutputFolder
from s2sent.service.bulk.progress import Progress
from s2sent.service.bulk.runner import Runner

DIM = 16
FAKE_MODEL = Model("fake", "f" * 64, DIM, (2, 4), {"query": "query: "})


def vector_of(text: str) -> NDArray[np.float32]:
    """The vector [DIM] of a text, not normalised."""
    digest = hashlib.sha256(text.encode()).digest()
    return np.frombuffer(digest[:DIM], np.uint8).astype(np.float32) - 127.5


@dataclass
class FakeEmbedder:
    """Embeds at once; texts of ``broken`` get a vector that is not finite."""

    model: Model = FAKE_MODEL
    broken: tuple[str, ...] = ()
    texts: list[str] = field(default_factory=list)

    def start(self, texts: list[str]) -> Pending:
        """Embed texts."""
        self.texts += texts
        vectors = np.array([vector_of(text) for text in texts], np.float32)
        for at, text in enumerate(texts):
            if text in self.broken:
                vectors[at] = np.nan
        lengths = np.array([len(text.split()) for text in texts], np.int32)
        return Pending(Embedded(vectors, lengths, lengths > 8, {}), [])

    def close(self) -> None:
        """Nothing to stop."""


def embed_files(
    files: list[Path],
    output: Path,
    options: Options | None = None,
    *,
    embedder: FakeEmbedder | None = None,
    shard: Shard | None = None,
    resume: bool = False,
    overwrite: bool = False,
    null_errors: bool = False,
    max_failed: float = MAX_FAILED,
    progress: Progress | None = None,
    check: Callable[[], None] = lambda: None,
) -> OutputFolder:
    """Run one shard as the command does."""
    options, shard = options or Options(), shard or Shard()
    embedder = embedder or FakeEmbedder()
    folder = OutputFolder(output, embedder.model, options, scan(map(str, files), options))
    try:
        folder.begin(shard, resume=resume, overwrite=overwrite)
        shown = progress or Progress()
        Runner(folder, embedder, null_errors, shown, check, max_failed).run(shard)
        folder.finish()
    finally:
        folder.close()
    return folder
