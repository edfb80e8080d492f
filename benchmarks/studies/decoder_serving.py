"""A decoder in the service beside sentence-transformers with the same checkpoint, in turns.

    python -m benchmarks.studies.decoder_serving --checkpoint FOLDER --artifact FOLDER

The artifact is an export of the checkpoint. The service runs in a process of its own and is asked
over loopback on one connection; sentence-transformers runs here, in torch. Both have as many
threads. In every round each embeds texts for so many seconds, the first of them by turns; a row of
the Markdown table has medians over rounds, and ratios are taken within a round.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import httpx
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.load.texts import read_texts
from benchmarks.systems.running import START_TIMEOUT_SECONDS, NotMeasured, free_port
from s2sent.model.network.encoder import load_encoder

SIZES = (1, 8, 32)  # texts at once
CHECKED = 8  # texts whose embeddings are compared
STEP = 37  # texts by which a round begins further

Embed = Callable[[list[str]], NDArray[np.float32]]


@dataclass(frozen=True)
class Window:
    """What one side did in one round."""

    texts_per_second: float
    p50_ms: float


def main() -> None:
    """Measure and print a Markdown table: a row for each number of texts at once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--texts", type=Path, help="a file with one text a line")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a window")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    encoder = load_encoder(options.checkpoint)
    texts = read_texts(options.texts)

    def in_torch(batch: list[str]) -> NDArray[np.float32]:
        found = encoder.encode(
            batch, batch_size=len(batch), normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(found)

    with served(options.artifact, options.threads) as in_service:
        cosines = (in_service(texts[:CHECKED]) * in_torch(texts[:CHECKED])).sum(1)
        print(f"smallest cosine between the two: {cosines.min():.6f}\n")
        print("| texts at once | texts/s, service | torch | ratio | p50 ms, service | torch |")
        print("|---:|---:|---:|---:|---:|---:|")
        for size in SIZES:
            rounds = [
                in_turns(in_service, in_torch, texts, size, options.seconds, first=number)
                for number in range(options.rounds)
            ]
            print(row(size, rounds), flush=True)


@contextmanager
def served(artifact: Path, threads: int) -> Iterator[Embed]:
    """The service with an artifact, ready; it ends with the block. Raises `NotMeasured`."""
    port = free_port()
    command = [sys.executable, "-m", "s2sent.service", "serve", "--artifact", str(artifact)]
    command += [f"--port={port}", f"--threads={threads}", "--no-log-requests"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False)
    try:
        _wait_until_ready(client, process)
        yield lambda batch: np.array(
            client.post("/embed", json={"inputs": batch}).raise_for_status().json(), np.float32
        )
    finally:
        client.close()
        process.terminate()
        process.wait()


def _wait_until_ready(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotMeasured(f"the service ended with {process.returncode}: serve it by hand.")
        try:
            if client.get("/ready").is_success:
                return
        except httpx.TransportError:
            pass  # the port is not open yet
        time.sleep(0.2)
    raise NotMeasured(f"the service was not ready after {START_TIMEOUT_SECONDS} s.")


def in_turns(
    service: Embed,
    torch_encode: Embed,
    texts: Sequence[str],
    size: int,
    seconds: float,
    *,
    first: int,
) -> tuple[Window, Window]:
    """A window of each; the even rounds begin with the service."""
    start = first * STEP
    sides = [service, torch_encode]
    order = sides if first % 2 == 0 else sides[::-1]
    found = {id(embed): window(embed, texts, size, seconds, start) for embed in order}
    return found[id(service)], found[id(torch_encode)]


def window(embed: Embed, texts: Sequence[str], size: int, seconds: float, start: int) -> Window:
    """Embed ``size`` texts at once, again and again, for at least so many seconds."""
    latencies: list[float] = []
    began = time.perf_counter()
    while not latencies or time.perf_counter() - began < seconds:
        at = start + len(latencies) * size
        batch = [texts[(at + place) % len(texts)] for place in range(size)]
        asked = time.perf_counter()
        embed(batch)
        latencies.append(time.perf_counter() - asked)
    elapsed = time.perf_counter() - began
    return Window(len(latencies) * size / elapsed, 1000 * median(latencies))


def row(size: int, rounds: Sequence[tuple[Window, Window]]) -> str:
    """A line of the table: medians over rounds, the ratio with its quartiles."""
    ratios = [ours.texts_per_second / theirs.texts_per_second for ours, theirs in rounds]
    low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    speeds = [median(side.texts_per_second for side in of) for of in zip(*rounds, strict=True)]
    waits = [median(side.p50_ms for side in of) for of in zip(*rounds, strict=True)]
    return (
        f"| {size} | {speeds[0]:.1f} | {speeds[1]:.1f} | {middle:.2f} [{low:.2f} to {high:.2f}] "
        f"| {waits[0]:.1f} | {waits[1]:.1f} |"
    )


if __name__ == "__main__":
    main()
