"""Kill `s2sent embed` at random moments, resume it each time, and compare the bytes at the end.

    python -m tests.support.kill_embed [--kills 30] [--end-kills 10] [--format parquet] [--seed 0]

An undisturbed run of the default model shows when it commits each part. Its time is cut into as
many equal pieces as there are kills, and a moment is drawn from each: a run that goes on with what
the kills before have left gets SIGKILL when it is as far. ``--end-kills`` more runs, each from a
copy of what was there before the last of these, are killed between the rename of the last part and
the end mark, or just after it. Ends with 1 when an output differs from the undisturbed run's.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from s2sent.service.bulk.output.folder import MANIFEST, PARTS, SUCCESS
from tests.support.bulk_files import contents, start_embed, write_texts

LOOK_SECONDS = 0.001
RECORDS = f"{PARTS}/[0-9]*.json"
Process = subprocess.Popen[str]


@dataclass(frozen=True)
class Undisturbed:
    """A run to its end: its bytes, when each part was committed, and how long its end took."""

    contents: dict[str, bytes]
    commits: list[float]  # seconds after its start
    end_seconds: float  # from the last part to the end mark

    def moments(self, count: int, generator: random.Random) -> list[float]:
        """A random moment in each of ``count`` equal pieces of the time to the last commit."""
        piece = self.commits[-1] / count
        return [generator.uniform(at * piece, (at + 1) * piece) for at in range(count)]

    def wait_until(self, moment: float, out: Path, process: Process) -> None:
        """Wait until another run, whose output is ``out``, is as far as this was at a moment."""
        parts = bisect(self.commits, moment)
        if _parts(out) == parts > 0:  # it begins where the one before was killed
            moment += self.commits[0]
        while process.poll() is None and _parts(out) < parts:
            time.sleep(LOOK_SECONDS)
        until = time.monotonic() + moment - (self.commits[parts - 1] if parts else 0.0)
        while process.poll() is None and _parts(out) <= parts and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)


def main() -> int:
    """Do it and print what happened."""
    arguments = _parse()
    generator = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        texts = write_texts(scratch / "texts.txt", arguments.rows, generator)
        command = [texts, "--format", arguments.format, "--resume"]
        command += ["--rows-per-shard", arguments.rows_per_shard, "-o"]
        whole = _run_undisturbed(command, scratch / "whole")
        _say(f"undisturbed: {len(whole.commits)} parts, the last after {whole.commits[-1]:.2f} s")
        out, before_end, kills = scratch / "killed", scratch / "before-end", 0
        for moment in whole.moments(arguments.kills, generator):
            if out.exists():
                shutil.rmtree(before_end, ignore_errors=True)
                shutil.copytree(out, before_end)
            process = start_embed(*command, out)
            whole.wait_until(moment, out, process)
            kills += _kill(process)
            _say(f"killed where the other was after {moment:.2f} s: {_parts(out)} parts are there")
        same = [_finish(command, out) == whole.contents]
        left: Counter[str] = Counter()
        while left.total() < arguments.end_kills:
            shutil.rmtree(out)
            shutil.copytree(before_end, out)
            if _killed_at_the_end(command, out, whole, generator):
                left[_last_written(out, whole)] += 1
                same.append(_finish(command, out) == whole.contents)
    ends = ", ".join(f"{what} {times}" for what, times in sorted(left.items()))
    _say(f"{kills} kills on the way, {left.total()} at the end with the last thing there: {ends}")
    _say(f"the output is {'bit-identical' if all(same) else 'DIFFERENT'}")
    return 0 if all(same) and kills == arguments.kills else 1


def _run_undisturbed(command: Sequence[object], out: Path) -> Undisturbed:
    began = time.time()
    _finish(command, out)
    commits = [record.stat().st_mtime - began for record in sorted(out.glob(RECORDS))]
    last = max(part.stat().st_mtime for part in out.glob("[pr]*-*"))
    return Undisturbed(contents(out), commits, (out / SUCCESS).stat().st_mtime - last)


def _killed_at_the_end(
    command: Sequence[object], out: Path, whole: Undisturbed, generator: random.Random
) -> bool:
    """Whether a run could be killed between the last part and the end mark, or just after it."""
    process = start_embed(*command, out)
    while process.poll() is None and not _last_part(out, whole):
        time.sleep(LOOK_SECONDS)
    time.sleep(generator.uniform(0, 1.2 * whole.end_seconds))
    return _kill(process)


def _last_part(out: Path, whole: Undisturbed) -> bool:
    return any(out.glob(f"[pr]*-{len(whole.commits) - 1:06}.*"))


def _last_written(out: Path, whole: Undisturbed) -> str:
    if (out / SUCCESS).exists():
        return SUCCESS
    if "parts" in json.loads((out / MANIFEST).read_bytes()):
        return MANIFEST
    return "last record" if _parts(out) == len(whole.commits) else "last part"


def _parts(out: Path) -> int:
    return len(list(out.glob(RECORDS)))


def _kill(process: Process) -> bool:
    """Whether it was still there."""
    alive = process.poll() is None
    process.kill()
    process.communicate()
    return alive


def _finish(command: Sequence[object], out: Path) -> dict[str, bytes]:
    process = start_embed(*command, out)
    _, message = process.communicate()
    if process.returncode:
        sys.exit(f"s2sent embed ended with {process.returncode}: {message}")
    return contents(out)


def _say(sentence: str) -> None:
    sys.stdout.write(f"{sentence}\n")
    sys.stdout.flush()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--end-kills", type=int, default=10)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--rows-per-shard", type=int, default=150)
    parser.add_argument("--format", choices=("parquet", "npy", "jsonl"), default="parquet")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
