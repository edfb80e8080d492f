"""Everything that is asked of a GPU, in one run of ten minutes.

    python -m benchmarks.studies.gpu --texts FILE --out FILE [--artifact F] [--checkpoint F]
    python -m benchmarks.studies.gpu --device cpu --short --out FILE     # a dry run

Exactness, two runs at once and times, in float16 also with padded attention; the service by HTTP
processes, a raw loop, and `encode`.
Each cell is written to ``--out`` as it ends; one that fails or would begin after ``--limit`` is
written as not measured. The artifact is converted as the service does it. Needs wrk; for a machine
without an index `benchmarks.gpu_wheels` makes what is to be carried.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu_wheels import PACKAGES
from benchmarks.load.closed_loop import Load, prepare_bodies, run_load, summarise_ms
from benchmarks.load.texts import prepare_texts
from benchmarks.systems.ours import our_service
from benchmarks.systems.running import Running, running
from benchmarks.systems.system import DEFAULT_ARTIFACT, SERVICE_ROUTE
from benchmarks.systems.worker import measure
from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.gpu.conversion import convert_for_gpu
from s2sent.model.runtime.encoder import POOLED_OUTPUT, OnnxEncoder
from s2sent.model.runtime.sessions import run_bound

LOADS = (
    *(Load("1 x 1", 1, 1), Load("64 x 1", 64, 1), Load("256 x 1", 256, 1)),
    *(Load("1024 x 1", 1024, 1), Load("4 x 32", 4, 32), Load("32 x 32", 32, 32)),
    Load("16 long", 16, 1, "long"),
)
PROCESSES, BATCHES, COMPARED, AT_ONCE = (1, 4, 8, 12), (7, 64, 512), 512, 100_000
RUN_TEXTS, RUN_LENGTH, RUNS = (1, 32, 128, 256, 512, 1024), 16, 30
FORMS = ("fp16", "fp16, padded", "fp32")  # attention leaves padding out where it can
Cell = Callable[[], Any]


class Study:
    """The cells of one run, in their order."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.short = options, options.short
        self.seconds = 1.0 if self.short else options.seconds
        self.folder = Path(tempfile.mkdtemp())
        self.started = ExitStack()  # the service that runs
        self.service_of = cache(self._start)
        source = Artifact.open(options.artifact)
        self.on_cpu = OnnxEncoder(source)
        self.texts = prepare_texts(options.texts, self.on_cpu.tokenizer)
        self.rows = [row.input_ids for row in self.on_cpu.tokenizer.tokenize(self.texts.short)]
        for precision in ("fp16", "fp32"):
            convert_for_gpu(source, self.folder / precision, precision)

    def cells(self) -> dict[str, Cell]:
        """What is measured, by name; what matters most first."""
        cells: dict[str, Cell] = {}
        for each in FORMS:
            cells[f"exactness, {each}"] = partial(self.exactness, each)
            cells[f"two at once, {each}"] = partial(self.two_at_once, each)
            cells[f"a run, {each}"] = partial(self.run_times, each)
        loads = LOADS[:1] if self.short else LOADS
        for count, load in product(PROCESSES[:1] if self.short else PROCESSES, loads):
            name = f"service, {count} HTTP processes, {load.name}"
            cells[name] = partial(self.service, count, load)
        cells["service, stop"] = self.started.close
        for load in loads:
            cells[f"raw loop, {load.name}"] = partial(self.raw_loop, load)
            for attention in ("sdpa", "flash_attention_2") if self.options.checkpoint else ():
                cells[f"encode, {attention}, {load.name}"] = partial(self.encode, attention, load)
        return cells

    def encoder(self, form: str) -> OnnxEncoder:
        """The converted artifact on the device, of `FORMS`."""
        precision, _, padded = form.partition(", ")
        folder, device = self.folder / precision, self.options.device
        return OnnxEncoder(folder, device=device, unpadded=not padded)

    def exactness(self, form: str) -> Any:
        """Largest difference of a component to each text alone, and least cosine to the CPU."""
        encoder, texts = self.encoder(form), self.texts.short[: 64 if self.short else COMPARED]
        alone = encoder.encode(texts, batch_size=1)
        found = {
            f"batches of {size}": float(
                np.abs(encoder.encode(texts, batch_size=size) - alone).max()
            )
            for size in BATCHES
        }
        cosines = (alone * self.on_cpu.encode(texts)).sum(axis=1)
        zeros = int((~alone.any(axis=1)).sum())
        found |= {"least cosine to the CPU's float32": float(cosines.min()), "zeros": zeros}
        return found | ({"warning": encoder.warning} if encoder.warning else {})

    def two_at_once(self, form: str) -> Any:
        """Texts that fail, differ or are zeros in two threads of one session, past its lock."""
        encoder = self.encoder(form)
        session = encoder._by_depth[None]
        batches = [encoder.inputs(self.rows[at : at + 64]) for at in range(0, len(self.rows), 64)]
        expected = [run_bound(session, POOLED_OUTPUT, each) for each in batches]
        bound = 1e-4 if form == "fp32" else 1e-2
        found = dict.fromkeys(("texts", "failed", "wrong", "zeros"), 0)

        def run(number: int) -> None:
            at = number % len(batches)
            found["texts"] += len(expected[at])
            try:
                rows = run_bound(session, POOLED_OUTPUT, batches[at])
            except Exception:  # ONNX Runtime raises classes of its own
                found["failed"] += len(expected[at])
                return
            scale = np.linalg.norm(expected[at], axis=1, keepdims=True)
            found["wrong"] += int((np.abs(rows - expected[at]) / scale > bound).any(axis=1).sum())
            found["zeros"] += int((~rows.any(axis=1)).sum())

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, range((1_000 if self.short else AT_ONCE) // 64 + 1)))
        return found

    def run_times(self, form: str) -> Any:
        """Median ms of a run of n texts of `RUN_LENGTH` tokens, by depth and n."""
        encoder, found = self.encoder(form), {}
        runs = 3 if self.short else RUNS
        for depth in (None, *encoder.artifact.manifest.depths[:1]):
            for count in RUN_TEXTS[:3] if self.short else RUN_TEXTS:
                rows = [(self.rows[0] * RUN_LENGTH)[:RUN_LENGTH]] * count
                times = []
                for _ in range(runs):
                    started = time.perf_counter()
                    encoder.run(rows, depth=depth)
                    times.append(1e3 * (time.perf_counter() - started))
                found[f"{count} texts, depth {depth or 'full'}"] = median(times[runs // 3 :])
        return found | gpu_memory()

    def service(self, count: int, load: Load) -> Any:
        """One load on the service with this many HTTP processes, which all loads have in turn."""
        service = self.service_of(count)
        bodies = prepare_bodies("service", SERVICE_ROUTE, load, self.texts, self.folder)
        run_load(service, load, bodies, 1)
        return run_load(service, load, bodies, self.seconds) | gpu_memory()

    def _start(self, count: int) -> Running:
        self.started.close()
        flags = ["--device", self.options.device, "--http-processes", str(count)]
        flags += ["--max-concurrent-requests", "4096"]
        system = our_service(self.folder / "fp16", options=flags)
        return self.started.enter_context(running(system, self.folder / "log"))

    def raw_loop(self, load: Load) -> Any:
        """One thread that tokenises and runs as many texts as the load has at once."""
        encoder = self.encoder("fp16")
        return self._calls(lambda texts: encoder.encode(texts, batch_size=1024), load)

    def encode(self, attention: str, load: Load) -> Any:
        """sentence-transformers in float16; the batch size that gives most."""
        if attention == "flash_attention_2" and find_spec("flash_attn") is None:
            return "not measured: flash_attn is not installed"
        model = open_float16(self.options.checkpoint, self.options.device, attention)
        best: dict[str, Any] = {"texts_per_second": 0.0}
        for size in (32, 256, 1024):
            if size <= max(32, load.in_flight):
                seen = self._calls(partial(model.encode, batch_size=size), load)
                best = max(best, seen | {"batch": size}, key=lambda of: of["texts_per_second"])
        return best

    def _calls(self, embed: Callable[[list[str]], Any], load: Load) -> dict[str, Any]:
        task = {"texts": self.texts.of(load.kind), "texts_per_call": load.in_flight}
        measure(lambda texts: embed(list(texts)), task | {"seconds": 0.3})
        seen = measure(lambda texts: embed(list(texts)), task | {"seconds": self.seconds})
        rate = seen["texts"] / seen["seconds"]
        return {"texts_per_second": rate} | summarise_ms(seen["call_seconds"])


@cache
def open_float16(checkpoint: Path, device: str, attention: str) -> Any:
    """A sentence-transformers encoder in float16."""
    import torch
    from sentence_transformers import SentenceTransformer

    kwargs = {"attn_implementation": attention, "dtype": torch.float16}
    return SentenceTransformer(str(checkpoint), device=device, model_kwargs=kwargs)


def nvidia_smi(query: str) -> str:
    """One line of figures; empty without a GPU."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.check_output(command, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def gpu_memory() -> dict[str, float]:
    """Megabytes of the GPU in use."""
    used = nvidia_smi("memory.used")
    return {"gpu_mb": float(used)} if used else {}


def main() -> None:
    """Measure one cell after another, each written as it ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artifact", type=Path, default=DEFAULT_ARTIFACT)
    parser.add_argument("--checkpoint", type=Path, help="for sentence-transformers")
    parser.add_argument("--texts", type=Path, help="one text a line; by default the export's own")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--short", action="store_true", help="a few cells, for a dry run")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds for all cells")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    started = time.monotonic()
    packages = ("onnxruntime-gpu", "onnxruntime", "torch", "sentence-transformers")
    versions = {name: version(name) for name in packages if find_spec(name.replace("-", "_"))}
    card = nvidia_smi("name,driver_version") or "no NVIDIA GPU"
    found: dict[str, Any] = {"command": sys.argv, "card": card, "versions": versions}
    print(f"{card}; a machine without an index is brought {', '.join(PACKAGES)}, wrk and this tree")
    for name, cell in Study(options).cells().items():
        began = time.monotonic()
        try:
            late = began - started > options.limit
            found[name] = "not measured: no time was left" if late else cell()
        except Exception as error:  # libraries' own; the other cells are still measured
            found[name] = f"not measured: {type(error).__name__}: {error}"
        print(f"{time.monotonic() - began:6.1f} s  {name}: {json.dumps(found[name])}", flush=True)
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
