"""A library in a process of its own, asked over its standard input: what it does without HTTP.

    python -m benchmarks.systems.worker {raw,sentence-transformers,fastembed} FOLDER

Runs in the library's own environment. Reads one JSON task a line and answers each with one line:
{"do": "embed", "texts": [...]} with the embeddings, {"do": "measure", "texts": [...],
"texts_per_call": n, "in_flight": m, "seconds": s} with texts, seconds and the time of each call.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

BATCH_SIZE = 32

Embed = Callable[[Sequence[str]], Any]  # to an array [n, dim]


class Measured(Protocol):
    """A library as it is asked here."""

    def embed(self, texts: Sequence[str]) -> Any:
        """An array [n, dim]."""

    def measure(self, task: dict[str, Any]) -> dict[str, Any]:
        """What a task to measure is answered with."""


@dataclass(frozen=True)
class Library:
    """A library that one caller asks, call after call."""

    embed: Embed

    def measure(self, task: dict[str, Any]) -> dict[str, Any]:
        """Call after call over the texts in their order, until the time is over."""
        return measure(self.embed, task)


def open_raw(folder: str) -> Measured:
    """The raw limit on an artifact."""
    from benchmarks.systems.raw_limit import RawLimit

    return RawLimit(Path(folder))


def open_sentence_transformers(folder: str) -> Measured:
    """`encode` on a checkpoint."""
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(folder, device="cpu")
    options = {"batch_size": BATCH_SIZE, "show_progress_bar": False}
    return Library(lambda texts: encoder.encode(list(texts), **options))


def open_fastembed(folder: str) -> Measured:
    """fastembed on an ONNX folder, as its documentation adds a model of one's own.

    In batches of 32: its default of 256 pads more, as it does not sort by length.
    """
    import numpy as np
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="local",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="local"),
        dim=384,
        model_file="model.onnx",
    )
    encoder = TextEmbedding("local", specific_model_path=folder)
    return Library(lambda texts: np.array(list(encoder.embed(list(texts), batch_size=BATCH_SIZE))))


LIBRARIES = {
    "raw": open_raw,
    "sentence-transformers": open_sentence_transformers,
    "fastembed": open_fastembed,
}


def measure(embed: Embed, task: dict[str, Any]) -> dict[str, Any]:
    """Call after call over the texts in their order, until the time is over."""
    texts, size = task["texts"], task["texts_per_call"]
    times: list[float] = []
    position = 0
    started = now = time.perf_counter()
    while not times or now < started + task["seconds"]:
        chosen = [texts[(position + offset) % len(texts)] for offset in range(size)]
        position += size
        before = time.perf_counter()
        embed(chosen)
        now = time.perf_counter()
        times.append(now - before)
    return {"texts": position, "seconds": now - started, "call_seconds": times}


def main() -> None:
    """Open the library, say so, and do tasks until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("folder")
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    library = LIBRARIES[arguments.library](arguments.folder)
    library.embed(["ready"])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        if task["do"] == "embed":
            answer: Any = library.embed(task["texts"]).tolist()
        else:
            answer = library.measure(task)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
