"""The service while another program holds the rest of a GPU's memory.

    python -m benchmarks.studies.gpu_memory --artifact FOLDER --texts FILE [--seconds S] --out FILE

Large requests are sent before, while and after a second process holds all free memory, and a
service is started while it is held. Says how many requests were answered and how many failed, by
status, how far embeddings afterwards are from those before, and how the start ends. Writes JSON and
prints it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load.closed_loop import Load, prepare_bodies, run_load
from benchmarks.load.texts import Texts, prepare_texts
from benchmarks.systems.ours import our_service
from benchmarks.systems.running import NotMeasured, Running, running
from s2sent.model.artifact.manifest import TOKENIZER
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.tokenizer import Tokenizer

LOAD = Load("large", 32, 32, "long")
COMPARED = 64  # texts whose embeddings are compared
HELD = "held"
HOLD = f"""
import sys, torch
blocks, size = [], 1 << 30
while size >= 1 << 20:
    try:
        blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        size //= 2
print("{HELD}", sum(block.numel() for block in blocks), flush=True)
sys.stdin.read()
"""


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True, help="one text a line")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    artifact = Artifact.open(options.artifact)
    manifest = artifact.manifest
    tokenizer = Tokenizer(artifact.read(TOKENIZER), manifest.max_seq_length, manifest.template)
    texts = prepare_texts(options.texts, tokenizer)
    found: dict[str, Any] = {"command": sys.argv}
    try:
        _measure(found, options.artifact, texts, options.seconds)
    finally:  # what a service that ended answered until then is a result too
        options.out.write_text(json.dumps(found, indent=1))
        print(json.dumps(found, indent=1))


def _measure(found: dict[str, Any], artifact: Path, texts: Texts, seconds: float) -> None:
    system = our_service(artifact, options=("--device", "cuda"))
    with tempfile.TemporaryDirectory() as folder, running(system, Path(folder, "log")) as service:
        chosen = texts.of("short")[:COMPARED]
        before = service.embed(chosen, together=1)
        found["before"] = _load(service, texts, Path(folder), seconds)
        with _held_memory() as held:
            found["held_mb"] = held / 1e6
            found["while held"] = _load(service, texts, Path(folder), seconds)
            found["a start while held"] = _start(artifact)
        found["after"] = _load(service, texts, Path(folder), seconds)
        lines = Path(folder, "log").read_text().splitlines()
        found["batches that failed"] = sum("texts failed" in line for line in lines)
        errors = [line for line in lines if "Error" in line or "error" in line]
        found["first and last errors"] = [line[:400] for line in errors[:2] + errors[-2:]]
        after = service.embed(chosen, together=1)
        found["largest difference afterwards"] = float(np.abs(after - before).max())


def _load(service: Running, texts: Texts, folder: Path, seconds: float) -> dict[str, Any]:
    if service.system.route is None:
        raise NotMeasured("the service has no route")
    bodies = prepare_bodies("service", service.system.route, LOAD, texts, folder)
    try:
        seen = run_load(service, LOAD, bodies, seconds)
    except NotMeasured as error:
        return {"not measured": str(error)}
    keys = ("answers", "failed", "texts_per_second", "p50_ms", "p99_ms")
    return {key: seen[key] for key in keys} | {"statuses until now": _statuses(service)}


def _statuses(service: Running) -> list[str]:
    """Of `/embed` since the start, from the metrics."""
    with urllib.request.urlopen(service.origin + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    names = ("s2sent_requests_total{", "s2sent_requests_failed_total{", "s2sent_requests_rejected")
    return [line for line in lines if line.startswith(names) and not line.endswith(" 0.0")]


@contextmanager
def _held_memory() -> Iterator[int]:
    """Bytes of the GPU that another process holds within the block: all that was free."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        name, _, size = line.strip().partition(" ")
        if name != HELD:
            raise NotMeasured(f"the memory could not be held: {line!r}")
        yield int(size)
    finally:
        process.kill()
        process.wait()


def _start(artifact: Path) -> str:
    """What becomes of a service that is started now: ready, or the end of what it says."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            system = our_service(artifact, options=("--device", "cuda"))
            with running(system, Path(folder, "log")) as service:
                return f"ready after {service.seconds_to_ready:.1f} s"
        except NotMeasured as error:
            return str(error)[-800:]


if __name__ == "__main__":
    main()
