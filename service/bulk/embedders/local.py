"""Embedding in this process: one session, one thread a run, as many runs as there are cores.

Batches are made of texts of close lengths and depend only on the texts, never on threads or time,
so the same input gives the same bits.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.model.runtime.input_errors import UnusableInput
from s2sent.model.runtime.providers import ProviderUnavailable
from s2sent.model.runtime.tokenizer import MAX_CHARACTERS_PER_TOKEN
from s2sent.service.bulk.job import BulkError, Embedded, Model, Options, Pending
from s2sent.service.engine.inference.model import EngineStartFailed, LoadedModel, open_encoder
from s2sent.service.engine.inference.parallelism import usable_cpus

BATCH_TOKENS = 512  # padded, in one run; 1,024 take 40 MB more on two cores
BATCH_TEXTS = 128

Tokens = NDArray[np.int32]


class LocalEmbedder:
    """An artifact on ``threads`` cores, by default all that this process may use.

    Raises BulkError when the artifact cannot be opened or does not reproduce its canary, and for a
    prompt that leaves no room for a text.
    """

    def __init__(self, artifact: Path, options: Options, *, threads: int = 0) -> None:
        opened = _open(artifact)
        manifest = opened.manifest
        self.model = _describe(opened)
        options.check(self.model)
        self.threads = threads or usable_cpus()
        # The tokenizer's own threads; they are started with the first call.
        os.environ.setdefault("RAYON_NUM_THREADS", str(self.threads))
        self._encoder = _verified_encoder(opened)
        self._depth = options.depth
        self._prompt = manifest.prompt(options.prompt_name)
        try:
            self._encoder.tokenizer.tokenize([""], prompt=self._prompt)
        except UnusableInput as error:
            raise BulkError(f"Every text {error.complaint}") from None
        self._executor = ThreadPoolExecutor(self.threads, thread_name_prefix="encode")

    def start(self, texts: list[str]) -> Pending:
        """Tokenise texts and queue their batches, longest first."""
        rows = self._encoder.tokenizer.tokenize(texts, prompt=self._prompt)
        # As arrays: a list of ids takes ten times the memory.
        sequences = [np.array(row.input_ids, dtype=np.int32) for row in rows]
        embedded = Embedded(
            vectors=np.zeros((len(rows), self._encoder.dim), dtype=np.float32),
            tokens=np.fromiter(map(len, rows), dtype=np.int32, count=len(rows)),
            truncated=np.fromiter((row.truncated for row in rows), dtype=np.bool_, count=len(rows)),
            errors={
                at: "the text has no tokens to pool" for at, row in enumerate(rows) if not len(row)
            },
        )
        window = Pending(embedded, [])
        for batch in make_batches(embedded.tokens):
            run = self._executor.submit(self._run, [sequences[at] for at in batch], embedded, batch)
            window.runs.append(run)
        return window

    def close(self) -> None:
        """Drop the batches that have not begun and wait for the others."""
        self._executor.shutdown(cancel_futures=True)

    def _run(self, texts: list[Tokens], embedded: Embedded, batch: NDArray[np.intp]) -> None:
        try:
            embedded.vectors[batch] = self._encode(texts)
        except Exception:  # ONNX Runtime raises classes of its own; find the texts at fault
            for text, at in zip(texts, batch, strict=True):
                try:
                    embedded.vectors[at] = self._encode([text])[0]
                except Exception as error:  # as above
                    kind = type(error).__name__
                    embedded.errors[int(at)] = f"the encoder failed on the text ({kind})"

    def _encode(self, texts: list[Tokens]) -> NDArray[np.float32]:
        return self._encoder.run(texts, all_threads=False, depth=self._depth)  # type: ignore[arg-type]  # arrays of ids are sequences of them


def make_batches(lengths: NDArray[np.int32]) -> list[NDArray[np.intp]]:
    """Positions of texts with tokens by batch: close lengths together, the longest first.

    A batch has at most BATCH_TEXTS rows and BATCH_TOKENS padded tokens, or one row.
    """
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    batches, start = [], 0
    while start < len(order):
        rows = max(1, min(BATCH_TEXTS, BATCH_TOKENS // int(lengths[order[start]])))
        batches.append(order[start : start + rows])
        start += rows
    return batches


def describe(path: Path) -> Model:
    """The model of an artifact; raises BulkError when it cannot be opened."""
    return _describe(_open(path))


def _describe(artifact: Artifact) -> Model:
    manifest = artifact.manifest
    return Model(
        manifest.name,
        artifact.fingerprint,
        manifest.dim,
        manifest.all_depths,
        manifest.prompts,
        MAX_CHARACTERS_PER_TOKEN * manifest.max_seq_length,
    )


def _open(path: Path) -> Artifact:
    try:
        return Artifact.open(path, keep_graph=True)
    except ArtifactError as error:
        raise BulkError(str(error)) from None


def _verified_encoder(artifact: Artifact) -> OnnxEncoder:
    """An encoder whose runs take one thread each; raises BulkError unless its canary is right."""
    try:
        encoder = open_encoder(artifact, intra_op_num_threads=1)
    except (ArtifactError, ProviderUnavailable, EngineStartFailed) as error:
        raise BulkError(str(error)) from None
    try:
        LoadedModel(encoder, encoder.tokenizer, artifact).verify()
    except EngineStartFailed as error:
        raise BulkError(f"{artifact.path}: {error}") from None
    return encoder
