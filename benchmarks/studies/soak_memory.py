"""Resident memory of the service over minutes of load whose lengths keep changing.

    python -m benchmarks.studies.soak_memory [--minutes 10] [--texts FILE] [--out FOLDER]

Short texts, long ones and large requests follow each other, a few seconds each, in an order drawn
with a seed. Writes soak_memory.json into FOLDER, where the report finds it. Growth is the median of
the last quarter over that of the second: in the first, allocators still find their size. Needs wrk.
"""

import argparse
import json
import random
import shlex
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.load.closed_loop import LOADS, prepare_bodies, run_load
from benchmarks.load.texts import Texts, prepare_texts
from benchmarks.systems.ours import our_service
from benchmarks.systems.running import Running, running
from benchmarks.systems.system import DEFAULT_ARTIFACT, ROOT, SERVICE_ROUTE
from benchmarks.systems.usage import memory_mb
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.tokenizer import Tokenizer

STEP_SECONDS = 3
MAX_TOKENS = 256


def main() -> None:
    """Load, sample, write and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--artifact", type=Path, default=DEFAULT_ARTIFACT)
    parser.add_argument("--texts", type=Path, help="one short text a line")
    parser.add_argument("--serve", default="", help="options for the service")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    arguments = parser.parse_args()
    tokenizer = Tokenizer(Artifact.open(arguments.artifact).tokenizer_path, MAX_TOKENS)
    texts = prepare_texts(arguments.texts, tokenizer)
    system = our_service(arguments.artifact, options=shlex.split(arguments.serve))
    with (
        tempfile.TemporaryDirectory() as folder,
        running(system, Path(folder) / "log") as service,
    ):
        samples = soak(service, texts, arguments.minutes * 60, Path(folder))
    result = {
        "command": " ".join(system.command),
        "minutes": arguments.minutes,
        "growth_percent": growth_percent([pss for _, pss in samples]),
        "seconds_and_pss_mb": samples,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "soak_memory.json").write_text(json.dumps(result), encoding="utf-8")
    first, last = samples[0][1], samples[-1][1]
    print(f"{first:.0f} MB (PSS) when ready, {last:.0f} at the end of {arguments.minutes:g} min,")
    print(f"{result['growth_percent']:+.2f} % from the second quarter to the last.")


def soak(service: Running, texts: Texts, seconds: float, folder: Path) -> list[tuple[float, float]]:
    """(seconds since the start, PSS in MB) when ready and after every step of a random load."""
    choose = random.Random(0)  # noqa: S311  a reproducible order, not a secret
    started = time.monotonic()
    samples = [(0.0, memory_mb(service.process)["pss"])]
    while time.monotonic() - started < seconds or len(samples) < 8:
        load = choose.choice(LOADS)
        run_load(
            service,
            load,
            prepare_bodies("s2sent", SERVICE_ROUTE, load, texts, folder),
            STEP_SECONDS,
        )
        samples.append((time.monotonic() - started, memory_mb(service.process)["pss"]))
    return samples


def growth_percent(values: Sequence[float]) -> float:
    """By how many percent the median of the last quarter is above that of the second."""
    quarter = len(values) // 4
    return 100 * (median(values[-quarter:]) / median(values[quarter : 2 * quarter]) - 1)


if __name__ == "__main__":
    main()
