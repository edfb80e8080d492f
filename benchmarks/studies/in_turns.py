"""The time of encoders on the same texts, in turns: artifacts at each of their depths, checkpoints.

    python -m benchmarks.studies.in_turns FOLDER FOLDER ... [--texts FILE] [--sizes 1,8,32]

A folder is an artifact or a sentence-transformers checkpoint; the first one is what the others are
compared with. Every round runs each batch by every encoder, one after the other, so that what else
the machine does falls on all of them. Ratios are taken within a round; the table has their medians
and quartiles.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from benchmarks.load.texts import read_texts
from s2sent import OnnxEncoder, load_encoder
from s2sent.model.artifact.manifest import MANIFEST

Encode = Callable[[list[str]], object]


def main() -> None:
    """Measure and print a Markdown table for batches of each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--texts", type=Path, help="a file with one text a line")
    parser.add_argument("--sizes", type=_numbers, default=[1, 32], help="texts at a time")
    parser.add_argument("--count", type=int, default=320, help="texts in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}; give at least 2.")
    encoders = {
        name: encode
        for folder in options.folders
        for name, encode in _encoders(folder, options.threads).items()
    }
    texts = sorted(read_texts(options.texts)[: options.count], key=len)
    for size in options.sizes:
        batches = [texts[start : start + size] for start in range(0, len(texts), size)]
        rounds = [one_round(list(encoders.values()), batches) for _ in range(options.rounds + 1)]
        print(table(list(encoders), rounds[1:], texts=len(texts), size=size))  # the first warms up


def one_round(encoders: Sequence[Encode], batches: Sequence[list[str]]) -> list[float]:
    """Seconds that each encoder takes for all batches; they take turns batch by batch."""
    seconds = [0.0] * len(encoders)
    for batch in batches:
        for place, encode in enumerate(encoders):
            started = time.perf_counter()
            encode(batch)
            seconds[place] += time.perf_counter() - started
    return seconds


def table(names: Sequence[str], rounds: Sequence[Sequence[float]], *, texts: int, size: int) -> str:
    """A Markdown table: milliseconds of a text, and the ratio to the first encoder's."""
    lines = [f"| {size} at a time | ms a text | over the first |", "|---|---:|---:|"]
    for place, name in enumerate(names):
        milliseconds = median(seconds[place] for seconds in rounds) / texts * 1000
        ratios = [seconds[place] / seconds[0] for seconds in rounds]
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        lines.append(
            f"| {name} | {milliseconds:.3f} | {median(ratios):.3f} ({low:.3f} to {high:.3f}) |"
        )
    return "\n".join(lines) + "\n"


def _encoders(folder: Path, threads: int) -> dict[str, Encode]:
    """Full depth first, then each depth below it; of a checkpoint full depth alone."""
    if not (folder / MANIFEST).is_file():
        import torch

        torch.set_num_threads(threads)
        checkpoint = load_encoder(folder).to("cpu")
        return {str(folder): partial(checkpoint.encode, show_progress_bar=False)}
    encoder = OnnxEncoder(folder, intra_op_num_threads=threads)
    depths = encoder.artifact.manifest.depths
    shallower: dict[str, Encode] = {
        f"{folder} at depth {depth}": partial(encoder.encode, depth=depth) for depth in depths
    }
    return {str(folder): encoder.encode, **shallower}


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
