"""HTTP processes before one engine: what the hop costs, and what they carry together.

    python -m benchmarks.studies.http_processes [--processes 1 2] [--loads c1 c64 c256] [--real]

Each turn starts a service with each number of HTTP processes and loads one after the other, in an
order that alternates. Printed are medians: answers a second, the median answer time, processor time
a request of the engine process and of all HTTP processes, and the memory of one of these. By
default a run of the encoder takes a fixed time, whatever is in it, and gives fixed rows, so that
the processes around it are what is measured; ``--real`` runs the model, with ``-- FLAG...`` for the
service. Needs wrk (https://github.com/wg/wrk).
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.load.closed_loop import BY_NAME, Load, prepare_bodies, run_load
from benchmarks.load.texts import Texts, prepare_texts
from benchmarks.machine import describe_machine
from benchmarks.systems.running import Running, running
from benchmarks.systems.system import DEFAULT_ARTIFACT, NO_CHECK, PORT, SERVICE_ROUTE, System
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.tokenizer import Tokenizer
from s2sent.service.engine.inference.model import LoadedModel, open_encoder
from s2sent.service.engine.inference.parallelism import http_processes
from s2sent.service.process import end_process, tune_process
from s2sent.service.server import serve
from s2sent.service.settings_loading import load_settings
from s2sent.service.supervisor import serve_processes

MAX_TOKENS = 256
WARM_UP_SECONDS = 1.0
# As before a GPU: one run at a time, of all that waits.
LIKE_A_GPU = (
    *("--device", "cuda", "--threads", "1"),
    *("--max-batch-tokens", "16384", "--max-batch-texts", "1024"),
)


@dataclass(frozen=True)
class Figures:
    """Of one window; times of processors are microseconds a request, memory is MB."""

    rate: float
    p50_ms: float
    engine_us: float
    http_us: float  # of all HTTP processes; 0 where the engine process is the only one
    http_rss: float  # of the largest HTTP process
    http_pss: float


class FixedEncoder:
    """Runs take ``seconds``, and give every text the same row."""

    has_block_weights = False
    provider = "FixedExecutionProvider"

    def __init__(self, dim: int, max_seq_length: int, seconds: float) -> None:
        self.dim = dim
        self.max_seq_length = max_seq_length
        self._seconds = seconds
        self._row = np.random.default_rng(0).standard_normal(dim).astype(np.float32)

    def run(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        all_threads: bool = True,
        depth: int | None = None,
    ) -> NDArray[np.float32]:
        """One row per sequence, after the time of a run."""
        time.sleep(self._seconds)
        return np.broadcast_to(self._row, (len(sequences), self.dim))

    block_weights = run

    def return_memory(self) -> None:
        """Nothing is kept."""


def serve_fixed(run_ms: float, flags: dict[str, str]) -> int:
    """The service around `FixedEncoder`; returns its exit code."""
    tune_process()
    settings = load_settings(**flags)
    artifact = Artifact.open(settings.artifact)
    tokenizer = open_encoder(artifact).tokenizer
    encoder = FixedEncoder(artifact.manifest.dim, artifact.manifest.max_seq_length, run_ms / 1000)
    loaded = LoadedModel(encoder, tokenizer, artifact)
    loaded.is_verified = True  # there is no canary in what it gives
    model: Future[LoadedModel] = Future()
    model.set_result(loaded)
    processes = http_processes(settings)
    if processes == 1:
        return serve(settings, model)
    return serve_processes(settings, processes, model)


def service_of(processes: int, options: argparse.Namespace) -> System:
    """A service with so many HTTP processes."""
    module = "s2sent.service" if options.real else "benchmarks.studies.http_processes"
    flags = options.flags if options.real else (*LIKE_A_GPU, "--run-ms", str(options.run_ms))
    command = (
        *(sys.executable, "-m", module, "serve", "--artifact", str(options.artifact)),
        *("--port", PORT, "--http-processes", str(processes), "--no-log-requests", *flags),
    )
    return System(f"processes-{processes}", str(processes), command, NO_CHECK, SERVICE_ROUTE)


def measure(service: Running, load: Load, bodies: Path, seconds: float) -> Figures:
    """One window, after a warm-up."""
    run_load(service, load, bodies, WARM_UP_SECONDS)
    processes = [psutil.Process(service.process.pid), *service.process.children()]
    before = [sum(process.cpu_times()[:2]) for process in processes]
    figures = run_load(service, load, bodies, seconds)
    used = [
        sum(process.cpu_times()[:2]) - then for process, then in zip(processes, before, strict=True)
    ]
    memory = [process.memory_full_info() for process in processes[1:]]
    per_request = 1e6 / figures["answers"]
    return Figures(
        figures["answers"] / figures["seconds"],
        figures["p50_ms"],
        used[0] * per_request,
        sum(used[1:]) * per_request,
        max((one.rss for one in memory), default=0) / 1e6,
        max((one.pss for one in memory), default=0) / 1e6,
    )


def in_turns(options: argparse.Namespace, texts: Texts, folder: Path) -> None:
    """Measure in turns, and print the medians."""
    seen: dict[tuple[str, int], list[Figures]] = {}
    for turn in range(options.turns):
        for processes in options.processes[:: 1 if turn % 2 == 0 else -1]:
            with running(service_of(processes, options), folder / "log") as service:
                for name in options.loads:
                    load = BY_NAME[name]
                    bodies = prepare_bodies("both", SERVICE_ROUTE, load, texts, folder)
                    figures = measure(service, load, bodies, options.seconds)
                    seen.setdefault((name, processes), []).append(figures)
    print("| load | HTTP processes | answers/s | p50, ms | engine process, us | HTTP processes, us"
          " | RSS, MB | PSS, MB |")  # fmt: skip
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for (name, processes), every in sorted(seen.items()):
        cells = [
            f"{median(getattr(one, field) for one in every):.{digits}f}"
            for field, digits in (
                *(("rate", 0), ("p50_ms", 3), ("engine_us", 1), ("http_us", 1)),
                *(("http_rss", 0), ("http_pss", 0)),
            )
        ]
        print(f"| {BY_NAME[name].short_label} | {processes} | {' | '.join(cells)} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or serve with a fixed encoder."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["serve"]:
        given = [one for one in given[1:] if one != "--no-log-requests"]
        names = [flag.removeprefix("--").replace("-", "_") for flag in given[::2]]
        flags = dict(zip(names, given[1::2], strict=True))
        end_process(serve_fixed(float(flags.pop("run_ms")), flags | {"log_requests": "false"}))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--loads", nargs="+", default=["c1", "c64", "c256"], choices=BY_NAME)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--run-ms", type=float, default=0.7, help="of the fixed encoder")
    parser.add_argument("--real", action="store_true", help="run the model")
    parser.add_argument("--artifact", type=Path, default=DEFAULT_ARTIFACT)
    parser.add_argument("--texts", type=Path, help="as of benchmarks.turns")
    parser.add_argument("flags", nargs="*", help="of the service, with --real")
    options = parser.parse_args(given)
    tokenizer = Tokenizer(Artifact.open(options.artifact).tokenizer_path, MAX_TOKENS)
    texts = prepare_texts(options.texts, tokenizer)
    machine = describe_machine()
    print(machine["cpu"], machine["cores"], "cores, load", machine["load_average"][0])
    with tempfile.TemporaryDirectory() as folder:
        in_turns(options, texts, Path(folder))


if __name__ == "__main__":
    main()
