"""The service on a GPU, beside sentence-transformers' `encode` and a plain ONNX Runtime loop.

    python -m benchmarks.studies.gpu --artifact FOLDER [--artifact FOLDER] --checkpoint FOLDER
        --texts FILE [--seconds S] [--rounds N] --out FILE

Each round measures every artifact behind the service and in a plain loop, then `encode` of the
checkpoint in float16, each with every load. Also how far an embedding differs between batches and
between one run and two at once, and how long a run takes by its number of texts. Writes JSON, and
prints Markdown tables.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.load.closed_loop import Load, prepare_bodies, run_load, summarise_ms
from benchmarks.load.texts import Texts, prepare_texts
from benchmarks.systems.ours import our_service
from benchmarks.systems.raw_limit import RawLimit
from benchmarks.systems.running import NotMeasured, Running, running
from benchmarks.systems.worker import measure
from s2sent.model.artifact.manifest import TOKENIZER
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import POOLED_OUTPUT, OnnxEncoder
from s2sent.model.runtime.sessions import open_by_depth, run_bound
from s2sent.model.runtime.tokenizer import Tokenizer

LOADS = (
    Load("c1", 1, 1),
    Load("c64", 64, 1),
    Load("c256", 256, 1),
    Load("batch", 4, 32),
    Load("many", 32, 32),
    Load("long", 16, 1, "long"),
)
ENCODE_BATCHES = (32, 128, 512)  # of sentence-transformers; the fastest counts
WARM_UP_SECONDS = 1.0
COMPARED = 512  # texts whose embeddings are compared between batches
CONCURRENT_BATCHES = 200
RUN_TEXTS, RUN_LENGTH, RUNS = (1, 8, 32, 64, 128, 256, 512, 1024), 16, 30

Figures = dict[str, Any]


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artifact", type=Path, action="append", required=True)
    parser.add_argument("--checkpoint", type=Path, help="for sentence-transformers")
    parser.add_argument("--texts", type=Path, required=True, help="one text a line")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--skip-loads", action="store_true", help="exactness and run times alone")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found: Figures = {"command": sys.argv, "device": _device(), "versions": _versions()}
    texts = prepare_texts(options.texts, _tokenizer(options.artifact[0]))
    for artifact in options.artifact:
        with _recorded(found, "exactness", artifact.name) as of:
            of |= _compare_batches(artifact, texts.short)
        with _recorded(found, "two runs at once in one session", artifact.name) as of:
            of |= _compare_concurrent(artifact, texts.long)
        with _recorded(found, "runs", artifact.name) as of:
            of |= {"ms": _run_times(artifact)}
        options.out.write_text(json.dumps(found, indent=1))
    for number in range(0 if options.skip_loads else options.rounds):
        for artifact in options.artifact:
            with _recorded(found, f"round {number}", f"service, {artifact.name}") as of:
                of |= _measure_service(artifact, texts, options.seconds)
            with _recorded(found, f"round {number}", f"plain loop, {artifact.name}") as of:
                of |= _measure_loop(artifact, texts, options.seconds)
            options.out.write_text(json.dumps(found, indent=1))
        if options.checkpoint:
            with _recorded(found, f"round {number}", "encode, float16") as of:
                of |= _measure_encode(options.checkpoint, texts, options.seconds)
        options.out.write_text(json.dumps(found, indent=1))
    print("\n".join(_tables(found)))


def _tokenizer(folder: Path) -> Tokenizer:
    artifact = Artifact.open(folder)
    manifest = artifact.manifest
    return Tokenizer(artifact.read(TOKENIZER), manifest.max_seq_length, manifest.template)


@contextmanager
def _recorded(found: Figures, part: str, name: str) -> Iterator[Figures]:
    """The place for the figures of one system; what cannot be measured is recorded as such."""
    of: Figures = found.setdefault(part, {}).setdefault(name, {})
    started = time.perf_counter()
    try:
        yield of
    except Exception as error:  # libraries' own; the other systems are still measured
        of["not_measured"] = f"{type(error).__name__}: {error}"
    of["took_seconds"] = time.perf_counter() - started
    print(part, name, json.dumps(of)[:400], file=sys.stderr, flush=True)


def _measure_service(artifact: Path, texts: Texts, seconds: float) -> Figures:
    found: Figures = {}
    system = our_service(artifact, options=("--device", "cuda"))
    with tempfile.TemporaryDirectory() as folder:
        with running(system, Path(folder, "log")) as service:
            for load in LOADS:
                bodies = prepare_bodies("service", _route(service), load, texts, Path(folder))
                run_load(service, load, bodies, WARM_UP_SECONDS)
                with _watched() as gpu:
                    found[load.name] = run_load(service, load, bodies, seconds)
                found[load.name] |= gpu
        found["ready_seconds"] = service.seconds_to_ready
    return found


def _route(service: Running) -> Any:
    if service.system.route is None:
        raise NotMeasured("the service has no route")
    return service.system.route


def _measure_loop(artifact: Path, texts: Texts, seconds: float) -> Figures:
    limit = RawLimit(artifact, on_gpu=True)
    found: Figures = {}
    for load in LOADS:
        task = {"texts": texts.of(load.kind), "in_flight": load.in_flight, "seconds": seconds}
        with _watched() as gpu:
            seen = limit.measure(task)
        found[load.name] = _rates(seen) | {"way": seen["way"]} | gpu
    return found


def _measure_encode(checkpoint: Path, texts: Texts, seconds: float) -> Figures:
    """One caller that gives as many texts a call as the load has in flight."""
    import torch
    from sentence_transformers import SentenceTransformer

    kwargs = {"dtype": torch.float16, "attn_implementation": "sdpa"}
    encoder = SentenceTransformer(str(checkpoint), device="cuda", model_kwargs=kwargs)
    found: Figures = {}
    for load in LOADS:
        together = load.in_flight
        rates = {}
        for size in ENCODE_BATCHES if together > ENCODE_BATCHES[0] else ENCODE_BATCHES[:1]:

            def embed(batch: Sequence[str], size: int = size) -> Any:
                return encoder.encode(list(batch), batch_size=size, show_progress_bar=False)

            task = {"texts": texts.of(load.kind), "texts_per_call": together, "seconds": 0.5}
            measure(embed, task)
            with _watched() as gpu:
                seen = measure(embed, task | {"seconds": seconds / 2})
            way = {"way": f"{together} texts a call, batches of {size}"}
            rates[size] = _rates(seen) | way | gpu
        found[load.name] = max(rates.values(), key=lambda of: of["texts_per_second"])
    return found


def _rates(seen: Figures) -> Figures:
    rate = {"texts_per_second": seen["texts"] / seen["seconds"]}
    return rate | summarise_ms(seen["call_seconds"])


def _compare_batches(artifact: Path, texts: Sequence[str]) -> Figures:
    """Largest difference of a component: between batches on the GPU, and from the CPU."""
    chosen = list(texts[:COMPARED])
    encoder = OnnxEncoder(Artifact.open(artifact), device="cuda")
    alone = encoder.encode(chosen, batch_size=1)
    by_size = {size: encoder.encode(chosen, batch_size=size) for size in (7, 64, COMPARED)}
    reversed_ = encoder.encode(chosen[::-1], batch_size=64)[::-1]
    again = encoder.encode(chosen, batch_size=64)
    differences = {f"batches of {size}": rows for size, rows in by_size.items()}
    differences |= {"batches of 64, reversed": reversed_}
    found: Figures = {name: _difference(rows, alone) for name, rows in differences.items()}
    found["the same batches again"] = _difference(again, by_size[64])
    found["provider"] = encoder.provider
    with suppress(Exception):  # a CPU may lack a kernel of a graph for GPUs
        on_cpu = OnnxEncoder(Artifact.open(artifact), device="cpu").encode(chosen, batch_size=32)
        found["the CPU"] = _difference(on_cpu, alone)
        found["least cosine to the CPU"] = float(np.sum(on_cpu * alone, axis=1).min())
    return found


def _compare_concurrent(artifact: Path, texts: Sequence[str]) -> Figures:
    """Batches of long texts in two threads of one session, which `OnnxEncoder` does not do on a
    GPU, beside the same batches one after another: how many fail, differ, or have rows of zeros."""
    opened = Artifact.open(artifact)
    encoder = OnnxEncoder(opened, device="cuda")
    session = open_by_depth(opened, "cuda")[None]
    rows = [row.input_ids for row in encoder.tokenizer.tokenize(texts)]
    batches = [encoder.inputs(rows[at : at + 64]) for at in range(0, len(rows), 64)]
    expected = [run_bound(session, POOLED_OUTPUT, batch) for batch in batches]
    found = dict.fromkeys(("batches", "failed", "differ by 1e-3 or more", "have zeros"), 0)

    def run(at: int) -> None:
        found["batches"] += 1
        try:
            embeddings = run_bound(session, POOLED_OUTPUT, batches[at % len(batches)])
        except Exception:  # ONNX Runtime raises classes of its own
            found["failed"] += 1
            return
        differ = _difference(embeddings, expected[at % len(batches)]) >= 1e-3
        found["differ by 1e-3 or more"] += differ
        found["have zeros"] += not embeddings.any(axis=1).all()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(CONCURRENT_BATCHES)))
    return found


def _difference(rows: Any, others: Any) -> float:
    return float(np.abs(rows - others).max())


def _run_times(artifact: Path) -> dict[int, float]:
    """Median ms of a run of n texts of `RUN_LENGTH` tokens, tokens given."""
    encoder = OnnxEncoder(Artifact.open(artifact), device="cuda")
    found = {}
    for count in RUN_TEXTS:
        rows = [[101, *range(2000, 2000 + RUN_LENGTH - 2), 102]] * count
        times = []
        for _ in range(RUNS):
            started = time.perf_counter()
            encoder.run(rows)
            times.append(1e3 * (time.perf_counter() - started))
        found[count] = median(times[RUNS // 3 :])
    return found


@contextmanager
def _watched() -> Iterator[Figures]:
    """The GPU's utilisation (median, %) and used memory (largest, MB) during a block."""
    query = "--query-gpu=utilization.gpu,memory.used"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "250"]
    found: Figures = {}
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except OSError:
        yield found
        return
    try:
        yield found
    finally:
        process.terminate()
        lines = process.communicate()[0].splitlines()
        rows = [[float(cell) for cell in line.split(",")] for line in lines if "," in line]
        if rows:
            found["gpu_percent"] = median(row[0] for row in rows)
            found["gpu_mb"] = max(row[1] for row in rows)


def _device() -> str:
    query = "--query-gpu=name,driver_version,memory.total"
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(command, text=True).strip()
    return "no NVIDIA GPU"


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("onnxruntime-gpu", "torch", "transformers", "sentence-transformers", "fastapi"):
        with suppress(Exception):
            found[name] = version(name)
    return found


def _tables(found: Figures) -> Iterator[str]:
    yield f"{found['device']}; {found['versions']}"
    rounds = [found[part] for part in found if part.startswith("round")]
    if rounds:
        yield "| texts/s | " + " | ".join(load.short_label for load in LOADS) + " |"
        yield "|---" * (len(LOADS) + 1) + "|"
    for name in rounds[0] if rounds else ():
        cells = []
        for load in LOADS:
            seen = [of[name][load.name] for of in rounds if load.name in of.get(name, {})]
            rates = [each["texts_per_second"] for each in seen]
            p50 = [each["p50_ms"] for each in seen]
            cells.append(f"{median(rates):.0f} ({median(p50):.2f} ms)" if rates else "–")
        yield f"| {name} | " + " | ".join(cells) + " |"
    for part in ("exactness", "two runs at once in one session", "runs"):
        for name, of in found.get(part, {}).items():
            yield f"{part}, {name}: {json.dumps(of)}"


if __name__ == "__main__":
    main()
