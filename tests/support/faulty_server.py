"""The real server around an encoder that fails on purpose: `python -m tests.support.faulty_server`.

Takes the flags of `s2sent serve` behind ``--seed`` and ``--faults``. Everything but the encoder is
what ships: it raises, dies, stalls or answers NaN in some runs, drawn from a seed.
"""

import argparse
import random
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from s2sent.service.engine.inference.model import LoadedModel
from s2sent.service.engine.inference.parallelism import http_processes
from s2sent.service.engine.types import TokenEncoder
from s2sent.service.server import serve
from s2sent.service.settings_loading import load_settings
from s2sent.service.supervisor import serve_processes
from s2sent.service.telemetry.logs import logging_to
from tests.support.wrapped_encoder import WrappedEncoder

# Runs of a thousand that go wrong in each way, at --faults 1. A thread that dies four times in a
# minute ends the process, as it should, so no more than two are told to die.
RAISE, NOT_FINITE, STALL, DIE = 10, 10, 10, 0.1
STALL_SECONDS = 0.2
MOST_DEATHS = 2
HEALTHY_RUNS = 50  # at first, so that the start succeeds


class FaultyEncoder(WrappedEncoder):
    """An encoder whose runs go wrong at random. What it returns as good is good."""

    def __init__(self, encoder: TokenEncoder, *, seed: int, faults: float, runs: int) -> None:
        super().__init__(encoder)
        self._most_runs = runs
        self._random = random.Random(seed)
        self._faults = faults
        self._lock = threading.Lock()  # one source of chance for all threads
        self._runs = self._deaths = 0
        self._spared = threading.local()  # a thread's next run, which may be its proof of health

    def run(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        all_threads: bool = True,
        depth: int | None = None,
    ) -> NDArray[np.float32]:
        """Embed, or go wrong."""
        with self._lock:
            self._runs += 1
            dice = self._random.uniform(0, 1000) if self._runs > HEALTHY_RUNS else 1000
        if self._runs > self._most_runs:
            raise SystemExit("told to die")
        dice = 1000 if getattr(self._spared, "next", True) else dice / self._faults
        self._spared.next = dice < RAISE + DIE + STALL + NOT_FINITE
        if dice < RAISE:
            raise RuntimeError("told to fail")
        if (dice := dice - RAISE) < DIE and self._deaths < MOST_DEATHS:
            self._deaths += 1
            raise SystemExit("told to die")
        if (dice := dice - DIE) < STALL:
            time.sleep(STALL_SECONDS)
        rows = self._encoder.run(sequences, all_threads=all_threads, depth=depth)
        if STALL <= dice < STALL + NOT_FINITE:
            rows[len(rows) // 2] = np.nan
        return rows


def main() -> int:
    """Serve with faults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=float, default=1.0, help="how many, against the usual")
    parser.add_argument("--dies-after", type=int, default=sys.maxsize, help="so many runs")
    arguments, flags = parser.parse_known_args()
    settings = load_settings(**_settings(flags))
    good = LoadedModel.open(settings)
    encoder = FaultyEncoder(
        good.encoder, seed=arguments.seed, faults=arguments.faults, runs=arguments.dies_after
    )
    model: Future[LoadedModel] = Future()
    model.set_result(LoadedModel(encoder, good.tokenizer, good.artifact))
    with logging_to(sys.stdout, settings.log_level):
        if (processes := http_processes(settings)) > 1:
            return serve_processes(settings, processes, model)
        return serve(settings, model)


def _settings(flags: list[str]) -> dict[str, object]:
    """``--max-batch-texts 8`` as ``{"max_batch_texts": "8"}``."""
    names = [flag.removeprefix("--").replace("-", "_") for flag in flags[::2]]
    return dict(zip(names, flags[1::2], strict=True))


if __name__ == "__main__":
    sys.exit(main())
