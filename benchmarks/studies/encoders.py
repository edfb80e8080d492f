"""What a text of each length costs in artifacts and in sentence-transformers, in turns.

    python -m benchmarks.studies.encoders FOLDER [FOLDER ...] --tokens 16 512 2048 --batch 1 8
    python -m benchmarks.studies.encoders --wide FOLDER --tokens 16 100 --batch 1 8 32

A FOLDER is an artifact, or a checkpoint, which sentence-transformers runs. All get the same token
ids of the same texts, so they need tokenizers with ids in common; tokenizing is not measured. Every
round runs each folder once on the same batches; the ratios to the first are taken within a round.

With --wide the folder gets random models of a few blocks, each as wide as a model that people pick,
and their artifacts. The table has the time of sentence-transformers over the artifact's.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles

import numpy as np

from s2sent.model.artifact.manifest import MANIFEST
from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.options import ExportOptions
from s2sent.model.export.parity import parity_sentences
from s2sent.model.runtime.encoder import OnnxEncoder

Rows = list[list[int]]
Run = Callable[[Rows], object]


def main() -> None:
    """Measure and print a Markdown table, a row for each length and batch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument(
        "--wide", type=Path, metavar="FOLDER", help="make wide models and time them"
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--mixed", action="store_true", help="lengths from an eighth to N, not N")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    if bool(options.folders) == bool(options.wide):
        parser.error("give folders, or --wide with one.")
    cases = [(tokens, count) for tokens in options.tokens for count in options.batch]
    if options.wide:
        print_ratios(options, cases)
    else:
        print_times(options, cases)


def print_times(options: argparse.Namespace, cases: Sequence[tuple[int, int]]) -> None:
    """A row for each number of tokens and texts, a column for each folder."""
    runs = [open_encoder(folder, options.threads) for folder in options.folders]
    names = " | ".join(folder.name for folder in options.folders)
    print(f"| tokens | texts | {names} |\n|---:|---:|{'---:|' * len(runs)}")
    for tokens, count in cases:
        seconds = in_turns(runs, random_rows(tokens, count, mixed=options.mixed), options.rounds)
        cells = " | ".join(cell(seconds, index, count) for index in range(len(runs)))
        print(f"| {tokens} | {count} | {cells} |", flush=True)


def print_ratios(options: argparse.Namespace, cases: Sequence[tuple[int, int]]) -> None:
    """A row for each wide model, a column for each number of tokens and texts."""
    heads = " | ".join(f"{count} x {tokens}" for tokens, count in cases)
    print(f"| texts x tokens | {heads} |\n|---|{'---:|' * len(cases)}")
    for name, folders in wide_models(options.wide):
        runs = [open_encoder(folder, options.threads) for folder in folders]
        cells = []
        for tokens, count in cases:
            rows = random_rows(tokens, count, mixed=options.mixed)
            seconds = in_turns(runs, rows, options.rounds)
            cells.append(f"{median(library / ours for ours, library in seconds):.2f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def wide_models(folder: Path) -> Iterator[tuple[str, tuple[Path, Path]]]:
    """The names, and the artifacts and checkpoints, of wide random models; made where missing."""
    from s2sent.model.export.checkpoint import export_checkpoint
    from tests.support.models_of_2026 import WIDE, save_model

    for name in WIDE:
        checkpoint, artifact = folder / name / "checkpoint", folder / name / "artifact"
        if not checkpoint.exists():
            save_model(checkpoint, name, wide=True)
        if not artifact.exists():
            sentences = parity_sentences()[:12]
            export_checkpoint(checkpoint, artifact, ExportOptions(sentences=sentences))
        yield name, (artifact, checkpoint)


def in_turns(runs: Sequence[Run], rows: Rows, rounds: int) -> list[list[float]]:
    """The seconds of each run on ``rows``, in each round but a first one, which warms up."""
    return [[timed(run, rows) for run in runs] for _ in range(rounds + 1)][1:]


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
