"""Kill `s2sent embed` at random moments, resume it each time, and compare the bytes at the end.

    python -m tests.support.kill_embed [--kills 30] [--rows 12000] [--format parquet] [--seed 0]

Each run of the default model is killed (SIGKILL) between its first moment and the time that an
undisturbed run takes for a fair share of the parts, so kills fall into the start, the runs, the
writing and the commits. Ends with 1 when the output differs from that of an undisturbed run.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.support.bulk_files import contents, start_embed, write_texts


def main() -> int:
    """Do it and print what happened."""
    arguments = _parse()
    generator = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        texts = write_texts(scratch / "texts.txt", arguments.rows, generator)
        options = ("--format", arguments.format, "--rows-per-shard", arguments.rows_per_shard)
        began = time.monotonic()
        _finish(texts, "-o", scratch / "whole", *options)
        seconds = time.monotonic() - began
        sys.stdout.write(f"undisturbed: {seconds:.1f} s\n")
        kills, moments = 0, []
        out = scratch / "killed"
        while kills < arguments.kills:
            process = start_embed(texts, "-o", out, *options, "--resume")
            pause = generator.uniform(0.0, 2 + 1.3 * seconds / arguments.kills)
            time.sleep(pause)
            if process.poll() is None:
                process.kill()
                kills += 1
            process.communicate()
            parts = len(list((out / "_parts").glob("0*.json"))) if out.exists() else 0
            moments.append(f"{pause:.2f} s ({parts} parts)")
            if (out / "_SUCCESS").exists():
                break
        _finish(texts, "-o", out, *options, "--resume")
        same = contents(out) == contents(scratch / "whole")
    sys.stdout.write(f"{kills} kills, each after: {', '.join(moments)}\n")
    sys.stdout.write(f"the output is {'bit-identical' if same else 'DIFFERENT'}\n")
    return 0 if same and kills == arguments.kills else 1


def _finish(*arguments: object) -> None:
    process = start_embed(*arguments)
    _, message = process.communicate()
    if process.returncode:
        sys.exit(f"s2sent embed ended with {process.returncode}: {message}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--rows-per-shard", type=int, default=150)
    parser.add_argument("--format", choices=("parquet", "npy", "jsonl"), default="parquet")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
