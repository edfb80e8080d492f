"""`s2sent embed` beside the raw sessions, sentence-transformers and fastembed, and its memory.

    python -m benchmarks.studies.bulk speed --texts FILE [--rows 100000] [--only NAME...]
    python -m benchmarks.studies.bulk memory --texts FILE [--rows 1000000] [--depth 2]

`speed` gives every system the same texts with the same weights (all-MiniLM-L6-v2 in float32), in
turns, and prints texts per second and the ratio to `s2sent embed` within a turn. The time of
`s2sent embed` is from its first row to its end mark, so it reads, tokenises, embeds, writes and
flushes; the others embed in memory. The raw way is tokenizers and ONNX Runtime alone, over all
texts sorted by length: the faster of one session with all threads and one session a core.
`memory` repeats the texts and prints the largest resident memory of the process.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.systems.models import Models, prepare_models
from s2sent.service.settings import DEFAULT_ARTIFACT

RAW_BATCH = 32
MAX_TOKENS = 256
OURS = "s2sent embed"
TIMED_OUT_SECONDS = 3_600
Measure = Callable[[Path], float]  # a file of texts -> texts per second


def read_lines(path: Path, count: int) -> list[str]:
    """``count`` texts of a file with one a line, from its beginning again where it is shorter."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return list(itertools.islice(itertools.cycle(lines), count))


def embed_rate(artifact: Path) -> Measure:
    """`s2sent embed` into Parquet parts of its default size."""

    def measure(texts: Path) -> float:
        with tempfile.TemporaryDirectory(dir=texts.parent) as out:
            command = [sys.executable, "-m", "s2sent.service", "embed", str(texts), "--artifact"]
            command += [str(artifact), "-o", out, "--progress", "json"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout.splitlines()[-1])["rows_per_second"])

    return measure


def raw_rate(artifact: Path, sessions: int) -> Measure:
    """Tokenizers and ONNX Runtime, in a process of their own."""

    def measure(texts: Path) -> float:
        command = [sys.executable, "-m", "benchmarks.studies.bulk", "raw", "--texts", str(texts)]
        command += ["--artifact", str(artifact), "--sessions", str(sessions)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    return measure


def library_rate(python: Path, library: str, folder: Path) -> Measure:
    """A library in its own environment, one call with all texts."""

    def measure(texts: Path) -> float:
        lines = texts.read_text(encoding="utf-8").splitlines()
        task = {"do": "measure", "texts": lines, "texts_per_call": len(lines), "seconds": 0}
        command = [str(python), "-m", "benchmarks.systems.worker", library, str(folder)]
        done = subprocess.run(
            command, input=json.dumps(task) + "\n", capture_output=True, text=True, check=True,
            timeout=TIMED_OUT_SECONDS,
        )  # fmt: skip
        seen = json.loads(done.stdout.splitlines()[-1])
        return float(seen["texts"]) / float(seen["seconds"])

    return measure


def run_raw(artifact: Path, texts: Path, count: int) -> float:
    """Texts per second of ``count`` sessions that share the cores, tokenising included."""
    import onnxruntime as ort
    import tokenizers

    cores = len(os.sched_getaffinity(0))
    options = ort.SessionOptions()
    options.intra_op_num_threads = max(1, cores // count)
    path = str(artifact / "onnx/model.onnx")
    providers = ["CPUExecutionProvider"]
    sessions = [ort.InferenceSession(path, options, providers=providers) for _ in range(count)]
    tokenizer = tokenizers.Tokenizer.from_file(str(artifact / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    lines = texts.read_text(encoding="utf-8").splitlines()
    began = time.perf_counter()
    rows = [np.array(each.ids) for each in tokenizer.encode_batch_fast(lines)]
    rows.sort(key=len, reverse=True)
    batches = iter([rows[at : at + RAW_BATCH] for at in range(0, len(rows), RAW_BATCH)])
    lock = threading.Lock()

    def work(session: Any) -> None:
        while True:
            with lock:
                batch = next(batches, None)
            if batch is None:
                return
            _run_raw(session, batch)

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(lines) / (time.perf_counter() - began)


def _run_raw(session: Any, batch: Sequence[Any]) -> None:
    shape = (len(batch), max(map(len, batch)))
    input_ids, attention_mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for index, row in enumerate(batch):
        input_ids[index, : len(row)] = row
        attention_mask[index, : len(row)] = 1
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    names = {each.name for each in session.get_inputs()}
    if "token_type_ids" in names:
        inputs["token_type_ids"] = np.zeros(shape, np.int64)
    session.run(None, inputs)


def find_systems(models: Models, peers: Path) -> dict[str, Measure]:
    """What can be measured here; a library only where its environment is."""
    cores = len(os.sched_getaffinity(0))
    systems: dict[str, Measure] = {
        OURS: embed_rate(models.artifact),
        "raw, one session": raw_rate(models.artifact, 1),
        "raw, one session a core": raw_rate(models.artifact, cores),
    }
    for library, folder in (
        ("sentence-transformers", models.checkpoint),
        ("fastembed", models.onnx),
    ):
        if (python := peers / library / "bin/python").exists():
            systems[library] = library_rate(python, library, folder)
    return systems


def measure_speed(systems: dict[str, Measure], texts: Path, turns: int) -> dict[str, list[float]]:
    """Texts per second of every system in every turn; the order alternates."""
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(turns):
        for name in list(systems)[:: -1 if turn % 2 else 1]:
            rates[name].append(systems[name](texts))
            print(f"turn {turn + 1}, {name}: {rates[name][-1]:.0f} texts/s", file=sys.stderr)
    return rates


def print_speed(rates: dict[str, list[float]]) -> None:
    """A table: medians, and what `s2sent embed` is of each, with min and max over the turns."""
    ours = rates[OURS]
    raw = [rate for name, rate in rates.items() if name.startswith("raw")]
    best = (
        {"raw, the faster of both": [max(turn) for turn in zip(*raw, strict=True)]} if raw else {}
    )
    print("| | texts/s | s2sent embed is | |\n|---|---:|---:|---|")
    for name, theirs in (rates | best).items():
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"| {name} | {median(theirs):.0f} | {median(ratios):.3f} | {spread} |")


def measure_memory(texts: Path, artifact: Path, depth: int | None) -> tuple[float, float]:
    """The largest resident memory of `s2sent embed` in MB, and its rows per second.

    It is read from Linux' ``VmHWM`` with every line of progress, one a second: ``ru_maxrss`` of a
    child begins with the memory of the process that started it.
    """
    with tempfile.TemporaryDirectory(dir=texts.parent) as out:
        command = [sys.executable, "-m", "s2sent.service", "embed", str(texts), "--artifact"]
        command += [str(artifact), "-o", out, "--progress", "json"]
        command += ["--depth", str(depth)] if depth else []
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None  # noqa: S101  # a pipe was asked for
        last, most = "", 0.0
        with process.stdout as lines:
            for line in lines:
                last, most = line, max(most, high_water_mb(process.pid))
    if process.wait():
        sys.exit(f"s2sent embed ended with {process.returncode}.")
    return most, float(json.loads(last)["rows_per_second"])


def high_water_mb(pid: int) -> float:
    """The largest resident memory of a process so far; 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("speed", "memory", "raw"))
    parser.add_argument("--texts", type=Path, required=True, help="one text a line")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--depth", type=int, help="last block to run, for memory; by default all")
    parser.add_argument("--artifact", type=Path, default=DEFAULT_ARTIFACT)
    parser.add_argument("--sessions", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, default=Path(".bench/models"), help="for models")
    parser.add_argument("--only", nargs="+", help="measure these beside s2sent embed; default all")
    parser.add_argument("--peers", type=Path, default=Path(".venv/peers"))
    arguments = parser.parse_args()
    if arguments.what == "raw":
        print(run_raw(arguments.artifact, arguments.texts, arguments.sessions))
        return
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.txt"
        lines = read_lines(arguments.texts, arguments.rows)
        texts.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        del lines
        if arguments.what == "memory":
            megabytes, rate = measure_memory(texts, arguments.artifact, arguments.depth)
            print(f"{arguments.rows} rows: {megabytes:.0f} MB at most, {rate:.0f} rows/s")
            return
        models = prepare_models(arguments.cache, ["A man is playing a guitar."])
        machine = describe_machine()
        print(f"{machine['cores']} cores of {machine['cpu']}; {arguments.rows} texts", flush=True)
        systems = find_systems(models, arguments.peers)
        names = {OURS, *(arguments.only or systems)}
        if unknown := ", ".join(names - {*systems}):
            parser.error(f"--only {unknown} is not among {', '.join(systems)}.")
        chosen = {name: systems[name] for name in systems if name in names}
        print_speed(measure_speed(chosen, texts, arguments.turns))


if __name__ == "__main__":
    main()
