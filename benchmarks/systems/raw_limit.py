"""The raw limit: tokenizers and ONNX Runtime alone, no server and nothing of this project.

One session with all threads, or one session a core: which is faster depends on the machine and on
the load, so both are tried for batches of 1 to 32 texts, and the fastest way is timed. As many
texts are at hand at once as the load has in flight; they are sorted by length among themselves.
"""

import itertools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import tokenizers
from numpy.typing import NDArray

BATCH_SIZES = (1, 4, 8, 16, 32)
MAX_TOKENS = 256
TRIAL_SECONDS = 1.0


@dataclass
class BatchStream:
    """Batches for several threads, drawn from the texts in their order without end."""

    texts: Sequence[str]
    tokenizer: tokenizers.Tokenizer
    in_flight: int
    batch_size: int
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._batches = self._generate()

    def take(self) -> list[list[int]]:
        """The next batch, as token ids of texts of like lengths."""
        with self._lock:
            return next(self._batches)

    def _generate(self) -> Iterator[list[list[int]]]:
        endless = itertools.cycle(self.texts)
        while True:
            pool = list(itertools.islice(endless, self.in_flight))
            rows = sorted((each.ids for each in self.tokenizer.encode_batch(pool)), key=len)
            for start in range(0, len(rows), self.batch_size):
                yield rows[start : start + self.batch_size]


class RawLimit:
    """An artifact's graph in one session with all threads, and in one session a core."""

    def __init__(self, artifact: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(artifact / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        path = str(artifact / "onnx/model.onnx")
        self._ways = _ways(path)
        self._fastest: dict[tuple[int, str], tuple[str, int]] = {}  # by load

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings [n, dim] in the order of ``texts``."""
        session = next(iter(self._ways.values()))[0]
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        return np.concatenate([_run(session, [row]) for row in rows])

    def measure(self, task: dict[str, Any]) -> dict[str, Any]:
        """Texts, seconds and batch times of the fastest way, which is named.

        ``task`` has ``texts``, ``in_flight`` (texts at hand at once) and ``seconds``.
        """
        load = (task["in_flight"], task["texts"][0])
        if load not in self._fastest:
            self._fastest[load] = self._find_fastest(task)
        way, size = self._fastest[load]
        name = f"{way}, {size} text{'s' if size > 1 else ''} a run"
        return self._time(way, size, task, task["seconds"]) | {"way": name}

    def _find_fastest(self, task: dict[str, Any]) -> tuple[str, int]:
        """The way and the batch size with the most texts a second in a short trial."""
        trials = {
            (way, size): _rate(self._time(way, size, task, TRIAL_SECONDS))
            for way in self._ways
            for size in sorted({self._fitting(way, size, task) for size in BATCH_SIZES})
        }
        return max(trials, key=lambda key: trials[key])

    def _fitting(self, way: str, size: int, task: dict[str, Any]) -> int:
        """At most so many texts a run that each session has a batch of its own."""
        in_flight: int = task["in_flight"]
        return max(1, min(size, in_flight // len(self._sessions(way, task))))

    def _sessions(self, way: str, task: dict[str, Any]) -> list[ort.InferenceSession]:
        """Those of the way, and no more than texts at hand."""
        return self._ways[way][: task["in_flight"]]

    def _time(self, way: str, size: int, task: dict[str, Any], seconds: float) -> dict[str, Any]:
        sessions = self._sessions(way, task)
        stream = BatchStream(task["texts"], self._tokenizer, task["in_flight"], size)
        times: list[float] = []
        counts: list[int] = []
        started = time.perf_counter()

        def work(session: ort.InferenceSession) -> None:
            while (began := time.perf_counter()) < started + seconds or not times:
                batch = stream.take()
                _run(session, batch)
                times.append(time.perf_counter() - began)
                counts.append(len(batch))

        threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.perf_counter() - started
        return {"texts": sum(counts), "seconds": elapsed, "call_seconds": times}


def _rate(seen: dict[str, Any]) -> float:
    rate: float = seen["texts"] / seen["seconds"]
    return rate


def _ways(path: str) -> dict[str, list[ort.InferenceSession]]:
    cores = len(os.sched_getaffinity(0))
    return {
        "one session": [_open(path, cores)],
        "one session a core": [_open(path, 1) for _ in range(cores)],
    }


def _open(path: str, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _run(session: ort.InferenceSession, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Embeddings [n, dim] of token ids, padded to the longest."""
    longest = max(map(len, rows))
    input_ids = np.zeros((len(rows), longest), dtype=np.int64)
    attention_mask = np.zeros_like(input_ids)
    for index, row in enumerate(rows):
        input_ids[index, : len(row)] = row
        attention_mask[index, : len(row)] = 1
    inputs = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": np.zeros_like(input_ids),
    }
    output = session.get_outputs()[0].name
    embeddings: NDArray[np.float32] = session.run([output], inputs)[0]
    return embeddings
