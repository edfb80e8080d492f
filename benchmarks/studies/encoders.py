"""What a text of each length costs in artifacts and in sentence-transformers, in turns.

    python -m benchmarks.studies.encoders FOLDER [FOLDER ...] --tokens 16 512 2048 --batch 1 8

A FOLDER is an artifact, or a checkpoint, which sentence-transformers runs. All get the same token
ids of the same texts, so they need tokenizers with ids in common; tokenizing is not measured. Every
round runs each folder once on the same batches; the ratios to the first are taken within a round.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles

import numpy as np

from s2sent.model.artifact.manifest import MANIFEST
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder

Rows = list[list[int]]
Run = Callable[[Rows], object]


def main() -> None:
    """Measure and print a Markdown table, a row for each length and batch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--mixed", action="store_true", help="lengths from an eighth to N, not N")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    runs = [open_encoder(folder, options.threads) for folder in options.folders]
    names = " | ".join(folder.name for folder in options.folders)
    print(f"| tokens | texts | {names} |\n|---:|---:|{'---:|' * len(runs)}")
    for tokens in options.tokens:
        for count in options.batch:
            rows = random_rows(tokens, count, mixed=options.mixed)
            seconds = [[timed(run, rows) for run in runs] for _ in range(options.rounds + 1)][1:]
            cells = " | ".join(cell(seconds, index, count) for index in range(len(runs)))
            print(f"| {tokens} | {count} | {cells} |", flush=True)


def open_encoder(folder: Path, threads: int) -> Run:
    """A function that embeds rows of token ids by the artifact or checkpoint in ``folder``."""
    if (folder / MANIFEST).is_file():
        encoder = OnnxEncoder(Artifact.open(folder), intra_op_num_threads=threads)
        return lambda rows: encoder.run(rows)
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    library = SentenceTransformer(str(folder), device="cpu")

    def run(rows: Rows) -> object:
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in rows], True)
        with torch.inference_mode():
            return library({"input_ids": padded, "attention_mask": mask.long()})

    return run


def random_rows(tokens: int, count: int, *, mixed: bool) -> Rows:
    """Token ids from 1,000 to 2,000: rows of ``tokens``, or ``mixed`` ones of an eighth to all."""
    random = np.random.default_rng(tokens * count)
    least = max(1, tokens // 8) if mixed else tokens
    lengths = random.integers(least, tokens, endpoint=True, size=count)
    return [random.integers(1_000, 2_000, size=length).tolist() for length in lengths]


def timed(run: Run, rows: Rows) -> float:
    start = time.perf_counter()
    run(rows)
    return time.perf_counter() - start


def cell(seconds: Sequence[Sequence[float]], index: int, count: int) -> str:
    """The median time of a text in milliseconds, and its ratio to the first folder's."""
    milliseconds = median(row[index] for row in seconds) / count * 1000
    if index == 0:
        return f"{milliseconds:.2f} ms"
    low, middle, high = quantiles([row[index] / row[0] for row in seconds], n=4)
    return f"{milliseconds:.2f} ms, {middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
