"""Whether texts for two depths cost less as one run than as two.

    python -m benchmarks.studies.mixed_depths --artifact FOLDER [--texts FILE]

FOLDER was exported with --depths. One run for both kinds of text has to go to full depth, and the
shallow texts are read at their exit on the way. It is timed as a run of all texts at full depth:
what pooling at a second exit adds is left out, so one run is shown at its best. Two runs are one of
the shallow texts and one of the others, on the same thread. Both take turns, group by group; the
table has the medians of the ratios of the rounds.
"""

import argparse
import time
from pathlib import Path
from statistics import median

from benchmarks.load.texts import read_texts
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder

Batch = list[list[int]]
Group = tuple[Batch, Batch]  # the texts for a lower depth, and those for full depth

COUNTS = ((1, 1), (1, 4), (4, 1), (4, 4), (16, 16))  # shallow and deep texts of a group
LARGEST_GROUP = max(map(sum, COUNTS))


def main() -> None:
    """Measure and print a Markdown table: a row a group, a column a depth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--texts", type=Path, help="a file with one text a line")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, default=256, help="texts in a round")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; give at least 1.")

    encoder = OnnxEncoder(Artifact.open(options.artifact), intra_op_num_threads=options.threads)
    depths = encoder.artifact.manifest.depths
    texts = read_texts(options.texts)[: options.count]
    if len(texts) < LARGEST_GROUP:
        parser.error(
            f"a round has {len(texts)} texts and a group up to {LARGEST_GROUP}; give more with"
            " --count or --texts."
        )
    rows = sorted((row.input_ids for row in encoder.tokenizer.tokenize(texts)), key=len)
    print(f"| shallow + deep texts | {' | '.join(f'depth {depth}' for depth in depths)} |")
    print(f"|---|{'---:|' * len(depths)}")
    for shallow, deep in COUNTS:
        groups = [
            (rows[start : start + shallow], rows[start + shallow : start + shallow + deep])
            for start in range(0, len(rows) - shallow - deep + 1, shallow + deep)
        ]
        ratios = [_ratio(encoder, groups, depth, options.rounds) for depth in depths]
        print(f"| {shallow} + {deep} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")


def _ratio(encoder: OnnxEncoder, groups: list[Group], depth: int, rounds: int) -> float:
    """The time of one run over that of two, the median of the rounds after the first."""
    ratios = []
    for _ in range(rounds + 1):
        together = apart = 0.0
        for shallow, deep in groups:
            started = time.perf_counter()
            encoder.run([*shallow, *deep])
            between = time.perf_counter()
            encoder.run(shallow, depth=depth)
            encoder.run(deep)
            apart += time.perf_counter() - between
            together += between - started
        ratios.append(together / apart)
    return median(ratios[1:])


if __name__ == "__main__":
    main()
