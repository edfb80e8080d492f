"""What the runs alone allow: latencies under open-loop load of a server that costs nothing else.

    python -m benchmarks.studies.queueing [--artifact FOLDER] [--texts FILE] [--rounds N]

Times runs of growing batches, first one on each core side by side and then one with all cores, in
turns, and lets Poisson arrivals wait for such runs in simulation: whoever is free takes all that
waits, up to the largest batch. No HTTP, no tokenising, no load generator and no busy neighbour
stands in the way, so what a real server adds to this is its own. The largest batch is the size that
is cheapest for a text.
"""

import argparse
import heapq
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.load.closed_loop import summarise_ms
from benchmarks.load.open_loop import schedule
from benchmarks.load.texts import read_texts
from benchmarks.systems.system import DEFAULT_ARTIFACT
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LOADS = (0.5, 0.8, 0.95)  # of the capacity
SIMULATED_ARRIVALS = 200_000

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Runs:
    """So many runs side by side, and the seconds that one of ``sizes[i]`` texts takes then."""

    name: str
    side_by_side: int
    sizes: Sequence[int]
    seconds: Sequence[float]

    def seconds_of(self, texts: int) -> float:
        """Between two sizes that were measured, on the line between them."""
        return float(np.interp(texts, self.sizes, self.seconds))

    @property
    def cheapest(self) -> int:
        """The size whose runs take the least for a text."""
        times = dict(zip(self.sizes, self.seconds, strict=True))
        return min(times, key=lambda size: times[size] / size)

    @property
    def capacity(self) -> float:
        """Texts a second in batches of the cheapest size."""
        return self.side_by_side * self.cheapest / self.seconds_of(self.cheapest)


def simulate(arrivals: Sequence[float], runs: Runs) -> list[float]:
    """Seconds from each arrival to the end of its run; ``arrivals`` ascend."""
    latencies: list[float] = []
    free_at = [0.0] * runs.side_by_side
    most = runs.cheapest
    while len(latencies) < len(arrivals):
        first = len(latencies)
        began = max(heapq.heappop(free_at), arrivals[first])
        last = first + 1
        while last < min(len(arrivals), first + most) and arrivals[last] <= began:
            last += 1
        ended = began + runs.seconds_of(last - first)
        latencies += [ended - arrival for arrival in arrivals[first:last]]
        heapq.heappush(free_at, ended)
    return latencies


def measure(encoder: OnnxEncoder, rows: Rows, *, cores: int, rounds: int) -> tuple[Runs, Runs]:
    """Runs side by side, one a core, and runs with all cores: medians over the rounds."""
    seconds: dict[tuple[int, int], list[float]] = {}
    for _ in range(rounds):
        for size in SIZES:
            for count in (cores, 1):
                found = _time_runs(encoder, rows, size, side_by_side=count)
                seconds.setdefault((count, size), []).append(median(found))
    crowded, alone = ([median(seconds[count, size]) for size in SIZES] for count in (cores, 1))
    return (
        Runs(f"{cores} runs side by side", cores, SIZES, crowded),
        Runs("one run with all cores", 1, SIZES, alone),
    )


def _time_runs(
    encoder: OnnxEncoder, rows: Rows, size: int, *, side_by_side: int, seconds: float = 0.7
) -> list[float]:
    """Seconds of runs of ``size`` random texts, ``side_by_side`` threads at it for a while."""
    found: list[float] = []
    until = time.perf_counter() + seconds

    def work(seed: int) -> None:
        choose = random.Random(seed)  # noqa: S311  a reproducible choice, not a secret
        while time.perf_counter() < until:
            batch = choose.choices(rows, k=size)
            began = time.perf_counter()
            encoder.run(batch, exclusive=side_by_side == 1)
            found.append(time.perf_counter() - began)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(side_by_side)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def main() -> None:
    """Measure, simulate and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artifact", type=Path, default=DEFAULT_ARTIFACT)
    parser.add_argument("--texts", type=Path, help="a file with one text a line")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    cores = len(os.sched_getaffinity(0))
    artifact = Artifact.open(options.artifact)
    encoder = OnnxEncoder(artifact, intra_op_num_threads=cores, concurrent_runs=cores)
    rows = [row.input_ids for row in encoder.tokenizer.tokenize(read_texts(options.texts))]
    side_by_side, with_all = measure(encoder, rows, cores=cores, rounds=options.rounds)
    _print_runs(side_by_side, with_all)
    lone = with_all.seconds_of(1)
    capacity = max(side_by_side.capacity, with_all.capacity)
    print(f"\n| load of {capacity:.0f} texts/s | | p50 ms | p99 ms | p99 over a lone run |")
    print("|---|---|---:|---:|---:|")
    for load in LOADS:
        rate = load * capacity
        arrivals = schedule(rate, SIMULATED_ARRIVALS / rate, seed=0)
        for runs in (side_by_side, with_all):
            if rate < runs.capacity:
                found = summarise_ms(simulate(arrivals, runs))
                ratio = found["p99_ms"] / (1e3 * lone)
                figures = f"{found['p50_ms']:.0f} | {found['p99_ms']:.0f} | {ratio:.1f}"
            else:
                figures = "– | – | –"
            print(f"| {load:.0%} | {runs.name} | {figures} |")


def _print_runs(*ways: Runs) -> None:
    print("| texts a run, ms | " + " | ".join(map(str, SIZES)) + " |")
    print("|---|" + "---:|" * len(SIZES))
    for runs in ways:
        print(f"| {runs.name} | " + " | ".join(f"{1e3 * each:.1f}" for each in runs.seconds) + " |")


if __name__ == "__main__":
    main()
