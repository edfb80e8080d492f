"""What bulk costs a lone interactive request, and what that request costs bulk.

    python -m benchmarks.studies.lanes --texts FILE [--artifact FOLDER] [--rounds 5] [--seconds 10]

In turns, on one server: lone requests of one text on an idle service; four clients of 256 texts
alone; both at one time; and both in one lane, which is what they get without lanes. Prints a
Markdown table with p50 and p99 of the lone requests, pooled over the rounds, bulk's texts per
second, and the mean run of a batch. The run that a lone request may have to wait for is one of
bulk alone.
"""

import argparse
import http.client
import itertools
import json
import random
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.load.closed_loop import summarise_ms
from benchmarks.load.texts import read_texts
from benchmarks.machine import describe_machine
from benchmarks.studies.profile import read_totals
from benchmarks.systems.ours import our_service
from benchmarks.systems.running import NotMeasured, running
from benchmarks.systems.system import DEFAULT_ARTIFACT
from s2sent.service.lanes import HEADER, Lane

BULK_CLIENTS, BULK_TEXTS = 4, 256
PAUSE_SECONDS = 0.1  # between lone requests, on average
WARM_UP_SECONDS = 1.0
RUNS = "s2sent_batch_duration_seconds"


@dataclass
class Scene:
    """What runs at one time, and what was measured of it, a number for each round."""

    name: str
    lone: bool
    bulk: Lane | None  # the lane of the bulk clients
    seconds: list[float] = field(default_factory=list)  # of each lone request, of all rounds
    texts_per_second: list[float] = field(default_factory=list)
    run_ms: list[float] = field(default_factory=list)


class Client:
    """A kept connection that posts texts to /embed in a lane and reads raw answers."""

    def __init__(self, url: str, lane: Lane) -> None:
        self._connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc)
        self._headers = {"Content-Type": "application/json", HEADER: lane}
        self._headers["Accept"] = "application/octet-stream"

    def post(self, body: bytes) -> None:
        """Send one request and read its answer; raises RuntimeError unless it is 200."""
        self._connection.request("POST", "/embed", body, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(f"/embed answered {answer.status}: {content[:200]!r}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def bodies(texts: Sequence[str], count: int, first: int) -> Iterator[bytes]:
    """Endless request bodies of ``count`` texts, from the text ``first`` on."""
    cycle = itertools.cycle([*texts[first:], *texts[:first]])
    while True:
        yield json.dumps({"inputs": list(itertools.islice(cycle, count))}).encode()


@contextmanager
def bulk_clients(url: str, lane: Lane, texts: Sequence[str]) -> Iterator[list[float]]:
    """Clients that saturate the service while the block runs; when each answer came."""
    ended: list[float] = []
    stop = threading.Event()

    def work(number: int) -> None:
        client = Client(url, lane)
        for body in bodies(texts, BULK_TEXTS, number * BULK_TEXTS % len(texts)):
            if stop.is_set():
                break
            client.post(body)
            ended.append(time.perf_counter())
        client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(BULK_CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def lone_requests(url: str, texts: Sequence[str], seconds: float, seed: int) -> list[float]:
    """The seconds each of the requests of one text took, with pauses in between."""
    choose = random.Random(seed)  # noqa: S311  a reproducible schedule, not a secret
    client, found = Client(url, "interactive"), []
    until = time.perf_counter() + seconds
    for body in bodies(texts, 1, choose.randrange(len(texts))):
        time.sleep(choose.expovariate(1 / PAUSE_SECONDS))
        since = time.perf_counter()
        if since > until:
            break
        client.post(body)
        found.append(time.perf_counter() - since)
    client.close()
    return found


def play(scene: Scene, url: str, texts: Sequence[str], seconds: float, seed: int) -> None:
    """Run a scene once and keep what was measured.

    Raises NotMeasured where the window is too short for a lone request, an answer or a run.
    """
    if scene.bulk is None:
        lone_requests(url, texts, WARM_UP_SECONDS, seed)
        lone = lone_requests(url, texts, seconds, seed)
        _at_least_one("lone requests", len(lone), scene, seconds)
        scene.seconds += lone
        return
    with bulk_clients(url, scene.bulk, texts) as ended:
        time.sleep(WARM_UP_SECONDS)
        before, since, answered = _runs(url), time.perf_counter(), len(ended)
        if scene.lone:
            lone = lone_requests(url, texts, seconds, seed)
            _at_least_one("lone requests", len(lone), scene, seconds)
            scene.seconds += lone
        else:
            time.sleep(seconds)
        answers, took = len(ended) - answered, time.perf_counter() - since
        after = _runs(url)
    _at_least_one("answers to bulk", answers, scene, seconds)
    _at_least_one("runs", after[1] - before[1], scene, seconds)
    scene.texts_per_second.append(answers * BULK_TEXTS / took)
    scene.run_ms.append(1000 * (after[0] - before[0]) / (after[1] - before[1]))


def _at_least_one(what: str, count: float, scene: Scene, seconds: float) -> None:
    """Raise NotMeasured where there is nothing to divide by."""
    if not count:
        raise NotMeasured(
            f"{scene.name}: a window of {seconds:g} s had no {what}. Give more --seconds."
        )


def _runs(url: str) -> tuple[float, float]:
    """Seconds of all runs so far, and their number."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        totals = read_totals(answer.read().decode())
    return totals[RUNS]


def as_table(scenes: Sequence[Scene]) -> str:
    """The scenes as Markdown."""
    lines = [
        "| | lone requests | p50, ms | p99, ms | bulk, texts/s | mean run, ms |",
        "|---|---|---|---|---|---|",
    ]
    for scene in scenes:
        times = summarise_ms(scene.seconds)
        figures = (
            f"{len(scene.seconds) or ''}",
            *(f"{times[name]:.1f}" if times else "" for name in ("p50_ms", "p99_ms")),
            *(
                f"{median(values):.{digits}f}" if values else ""
                for values, digits in ((scene.texts_per_second, 0), (scene.run_ms, 1))
            ),
        )
        lines.append(f"| {scene.name} | {' | '.join(figures)} |")
    return "\n".join(lines)


def verdict(idle: Scene, alone: Scene, both: Scene) -> str:
    """The two promises of docs/settings.md and what was measured."""
    p99 = summarise_ms(both.seconds)["p99_ms"]
    limit = 3 * summarise_ms(idle.seconds)["p99_ms"] + median(alone.run_ms)
    pairs = zip(both.texts_per_second, alone.texts_per_second, strict=True)
    kept = median([together / by_itself for together, by_itself in pairs])
    return (
        f"p99 beside bulk {p99:.1f} ms; 3 x idle p99 and one run are {limit:.1f} ms.\n"
        f"Bulk keeps {kept:.3f} of its throughput (median of the rounds' ratios); 0.9 is wanted."
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artifact", type=Path, default=DEFAULT_ARTIFACT)
    parser.add_argument("--texts", type=Path, help="one text a line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds is {arguments.rounds}; give at least 1.")
    texts = read_texts(arguments.texts)
    idle = Scene("lone requests, idle service", lone=True, bulk=None)
    alone = Scene("bulk alone", lone=False, bulk="bulk")
    both = Scene("both, two lanes", lone=True, bulk="bulk")
    one_lane = Scene("both, one lane", lone=True, bulk="interactive")
    scenes = (idle, alone, both, one_lane)
    with (
        tempfile.NamedTemporaryFile() as log,
        running(our_service(arguments.artifact), Path(log.name)) as service,
    ):
        try:
            for number in range(arguments.rounds):
                for scene in scenes if number % 2 == 0 else scenes[::-1]:
                    play(scene, service.origin, texts, arguments.seconds, number)
        except NotMeasured as error:
            parser.exit(1, f"{error}\n")
    load = describe_machine()["load_average"][0]
    print(f"{as_table(scenes)}\n\n{verdict(idle, alone, both)}\nThe machine's load was {load:.1f}.")


if __name__ == "__main__":
    main()
