"""The service beside the bare session it runs on: throughput, latency, memory, time to ready.

    python -m benchmarks.serving --texts FILE [--rounds 3] [--seconds 8]

Needs wrk (https://github.com/wg/wrk). Everything is measured in one run, in turns, because absolute
times mean little on a shared machine: read the ratios. FILE holds one text a line; without it the
export's own sentences are used. The bare session runs in a process of its own, and the service
rests meanwhile.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from model.parity import parity_sentences

PORT = 8099
URL = f"http://127.0.0.1:{PORT}"
ROOT = Path(__file__).parent.parent
RAW = "tokenise + session, batches of 32, lengths together"


@dataclass(frozen=True)
class Load:
    """One shape of traffic: so many connections, each sending so many texts a request."""

    connections: int
    texts_per_request: int

    def __str__(self) -> str:
        return f"{self.connections} connections x {self.texts_per_request} texts"


LOADS = [Load(1, 1), Load(64, 1), Load(4, 32)]


def main() -> None:
    """Measure and print a Markdown table and the raw numbers as JSON."""
    arguments = parse_arguments()
    if arguments.raw:
        print(json.dumps(measure_raw(arguments)))
        return
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed; it is in most distributions' packages.")
    with tempfile.TemporaryDirectory() as folder, running_service(arguments) as service:
        rounds = [run_round(arguments, Path(folder)) for _ in range(arguments.rounds)]
        memory = sum_memory(service.process)
    report(arguments, rounds, service.seconds_to_ready, memory)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_common_arguments(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8, help="of each measurement")
    parser.add_argument("--raw", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """What every measurement of the service needs to know."""
    parser.add_argument("--artifact", default=str(ROOT / "artifacts/default"))
    parser.add_argument("--texts", type=Path, help="one text a line")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))


def read_texts(arguments: argparse.Namespace) -> list[str]:
    """The texts to send."""
    if arguments.texts is None:
        return list(parity_sentences())
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip()]


# --- the bare session ---


def measure_raw(arguments: argparse.Namespace) -> dict[str, float]:
    """Texts/s of a session without a server, and the median time of one text alone."""
    from model.artifact import Artifact
    from model.onnx_encoder import OnnxEncoder

    encoder = OnnxEncoder(Artifact.open(arguments.artifact), intra_op_num_threads=arguments.threads)
    texts = read_texts(arguments)[:2048]
    rows = sorted((row.input_ids for row in encoder.tokenizer.tokenize(texts)), key=len)
    batches = [rows[start : start + 32] for start in range(0, len(rows), 32)]

    def run_sessions() -> None:
        for batch in batches:
            encoder.run(batch)

    def tokenise_and_run() -> None:
        encoder.encode(texts)

    def one_text(state: list[int] = [0]) -> None:  # noqa: B006  the position among the texts
        state[0] += 1
        encoder.run([encoder.tokenizer.tokenize([texts[state[0] % len(texts)]])[0].input_ids])

    seconds = arguments.seconds / 2
    return {
        "session_texts_per_second": len(texts) / median_seconds(run_sessions, seconds),
        "texts_per_second": len(texts) / median_seconds(tokenise_and_run, seconds),
        "one_text_ms": 1e3 * median_seconds(one_text, seconds),
    }


def median_seconds(action: Callable[[], None], seconds: float) -> float:
    """The median time of ``action``, repeated for so many seconds and at least three times."""
    action()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


# --- the service ---


@dataclass(frozen=True)
class Service:
    """A running server process, and how long it took to become ready."""

    process: psutil.Popen
    seconds_to_ready: float


@contextmanager
def running_service(arguments: argparse.Namespace) -> Iterator[Service]:
    """Start `s2sent serve` and wait until /ready says 200."""
    command = [sys.executable, "-m", "service", "serve"]
    command += ["--artifact", arguments.artifact, "--port", str(PORT)]
    command += ["--threads", str(arguments.threads)]
    started = time.perf_counter()
    process = psutil.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        while not is_ready():
            if process.poll() is not None:
                sys.exit(f"the service ended with {process.returncode}")
            time.sleep(0.01)
        yield Service(process, time.perf_counter() - started)
    finally:
        process.terminate()
        process.wait(60)


def is_ready() -> bool:
    """Whether /ready answers 200."""
    try:
        with urllib.request.urlopen(f"{URL}/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def sum_memory(process: psutil.Process) -> float:
    """Resident MB of the process and its children."""
    family = [process, *process.children(recursive=True)]
    return sum(member.memory_info().rss for member in family) / 1e6


def run_round(arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """The bare session, then every load on the service."""
    command = [sys.executable, "-m", "benchmarks.serving", "--raw", *sys.argv[1:]]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    results: dict[str, dict[str, float]] = {RAW: json.loads(output)}
    for load in LOADS:
        results[str(load)] = run_load(load, arguments, folder)
    return results


def run_load(load: Load, arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """One wrk run; texts/s and latency percentiles in ms."""
    bodies = folder / f"{load.texts_per_request}.jsonl"
    if not bodies.exists():
        bodies.write_text("\n".join(make_bodies(read_texts(arguments), load.texts_per_request)))
    command = ["wrk", "-t1", f"-c{load.connections}", f"-d{arguments.seconds}s", "--timeout=60s"]
    command += ["-s", str(ROOT / "benchmarks/post.lua"), URL, "--", str(bodies)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    answered = result["requests"] - result["failed"]
    result["texts_per_second"] = answered * load.texts_per_request / result["seconds"]
    return result


def make_bodies(texts: list[str], texts_per_request: int) -> list[str]:
    """JSON request bodies that go through the texts in their order, at least 256 of them."""
    bodies = []
    for start in range(0, max(len(texts), 256 * texts_per_request), texts_per_request):
        chosen = [texts[(start + offset) % len(texts)] for offset in range(texts_per_request)]
        bodies.append(json.dumps({"inputs": chosen[0] if texts_per_request == 1 else chosen}))
    return bodies


# --- the report ---


def report(
    arguments: argparse.Namespace,
    rounds: list[dict[str, dict[str, float]]],
    seconds_to_ready: float,
    memory: float,
) -> None:
    """Medians over the rounds; each ratio is taken within its round."""

    def median(name: str, figure: str) -> float:
        return statistics.median(results[name][figure] for results in rounds)

    def ratio(load: Load, figure: str = "texts_per_second") -> float:
        return statistics.median(
            results[str(load)]["texts_per_second"] / results[RAW][figure] for results in rounds
        )

    print("| what | texts/s | of tokenise + session | of the session | p50 ms | p99 ms | failed |")
    print("|---|---|---|---|---|---|---|")
    print(
        f"| the session alone, as below | {median(RAW, 'session_texts_per_second'):.0f} | | | | | |"
    )
    print(f"| {RAW} | {median(RAW, 'texts_per_second'):.0f} | | | | | |")
    for load in LOADS:
        print(
            f"| {load} | {median(str(load), 'texts_per_second'):.0f} | {ratio(load):.2f}"
            f" | {ratio(load, 'session_texts_per_second'):.2f}"
            f" | {median(str(load), 'p50_ms'):.2f} | {median(str(load), 'p99_ms'):.2f}"
            f" | {sum(results[str(load)]['failed'] for results in rounds):.0f} |"
        )
    one = str(LOADS[0])
    overhead = [results[one]["p50_ms"] - results[RAW]["one_text_ms"] for results in rounds]
    print()
    print(f"One text alone, tokenise + session: {median(RAW, 'one_text_ms'):.2f} ms in the median;")
    print(f"p50 at one connection is {statistics.median(overhead):.2f} ms above it.")
    print(f"Ready after {seconds_to_ready:.2f} s; {memory:.0f} MB resident after the load.")
    print(f"{platform.machine()}, {arguments.threads} threads, Python {platform.python_version()}.")
    print(json.dumps(rounds))


if __name__ == "__main__":
    main()
