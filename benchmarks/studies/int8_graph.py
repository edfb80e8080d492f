"""One text through the int8 graph of `s2sent-train int8`, and through the plain dynamic one.

    python -m benchmarks.studies.int8_graph --cache FOLDER

Both graphs hold the weights of all-MiniLM-L6-v2 and run in ONNX Runtime alone, with its default
options. Sessions are opened one at a time, because the threads of two would spin against each
other, and take turns. Prints a Markdown table: medians of milliseconds a run and of the ratio
within a turn, with the smallest and the largest.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime as ort

from benchmarks.systems.models import prepare_models

LENGTHS = (8, 16, 64, 256)  # tokens of the text
THREADS = (1, 2)
SECONDS = 0.7  # of a session at one length, after some runs that warm it up

Times = dict[tuple[int, int], float]  # median seconds a run by threads and tokens


def main() -> None:
    """Time both graphs in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cache", type=Path, required=True, help="for the graphs")
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    models = prepare_models(options.cache, ["A man plays the guitar."])
    graphs = [models.int8 / "onnx/model.onnx", models.tei_int8 / "onnx/model.onnx"]
    turns = []
    for turn in range(options.turns):
        order = graphs if turn % 2 else graphs[::-1]
        seen = {graph: time_graph(graph) for graph in order}
        turns.append([seen[graph] for graph in graphs])
    print(table(turns))


def time_graph(graph: Path, *, lengths: Sequence[int] = LENGTHS, seconds: float = SECONDS) -> Times:
    """The median run of one text, alone, by threads and number of tokens."""
    return {
        (threads, tokens): time_run(session, tokens, seconds)
        for threads in THREADS
        for session in [open_session(graph, threads)]
        for tokens in lengths
    }


def open_session(graph: Path, threads: int) -> ort.InferenceSession:
    """A session of so many threads, otherwise with ONNX Runtime's defaults."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def time_run(session: ort.InferenceSession, tokens: int, seconds: float) -> float:
    """Median seconds of a run with one text of so many tokens."""
    input_ids = np.arange(1, tokens + 1, dtype=np.int64)[None]
    known = {
        "input_ids": input_ids,
        "attention_mask": np.ones_like(input_ids),
        "token_type_ids": np.zeros_like(input_ids),
    }
    inputs = {each.name: known[each.name] for each in session.get_inputs()}
    output = [session.get_outputs()[0].name]
    for _ in range(5):
        session.run(output, inputs)
    times = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        session.run(output, inputs)
        times.append(time.perf_counter() - began)
    return median(times)


def table(turns: list[list[Times]]) -> str:
    """A row for each number of threads and tokens; a turn has both graphs' times, ours first."""
    rows = [
        "| threads | tokens | int8 of S2Sent, ms | plain dynamic, ms | ratio (min to max) |",
        "|---:|---:|---:|---:|---:|",
    ]
    for threads, tokens in turns[0][0]:
        ours, plain = ([turn[of][threads, tokens] for turn in turns] for of in (0, 1))
        ratios = [one / other for one, other in zip(ours, plain, strict=True)]
        rows.append(
            f"| {threads} | {tokens} | {1e3 * median(ours):.2f} | {1e3 * median(plain):.2f} "
            f"| {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
