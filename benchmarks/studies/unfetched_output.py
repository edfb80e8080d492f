"""What the block weights cost a run that does not ask for them: a graph beside itself without them.

    python -m benchmarks.studies.unfetched_output [--artifact FOLDER] [--sizes 1 32] [--sessions 16]

`/embed` fetches the embedding alone, `/explain` another output of the same graph. That output, and
what only it needs, is cut out of a copy of the graph; a session of each then runs the same texts in
turns, in an order that changes; a run of n texts is in an nth of the pairs. Where a session's
memory lies makes one session faster than another of the same graph, so sessions are opened anew
many times, in an order that changes too, and pairs of sessions of one graph are measured in the
same way: their spread is what the method cannot tell apart. A cost is the median over a pair's runs
of the ratio of their times; printed is the mean over the sessions with its 95 % interval (Student's
t).
"""

import argparse
import itertools
import time
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import onnx
import onnxruntime as ort
from onnx import GraphProto, NodeProto
from scipy.stats import t

from benchmarks.load.texts import read_texts
from benchmarks.systems.system import DEFAULT_ARTIFACT
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import BLOCK_WEIGHTS_OUTPUT, POOLED_OUTPUT, padded_inputs
from s2sent.model.runtime.tokenizer import Tokenizer

WARM_UP_RUNS = 10


def main() -> None:
    """Measure and print a line for each size of a batch and each pair of graphs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artifact", type=Path, default=DEFAULT_ARTIFACT)
    parser.add_argument("--texts", type=Path, help="one text a line")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 32], help="texts in a run")
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    artifact = Artifact.open(options.artifact)
    whole = onnx.load(artifact.path / "onnx/model.onnx")
    cut = onnx.ModelProto()
    cut.CopyFrom(whole)
    cut_output(cut.graph, BLOCK_WEIGHTS_OUTPUT)
    print(f"{count_nodes(whole.graph)} nodes with the output, {count_nodes(cut.graph)} without")
    tokenizer = Tokenizer(artifact.tokenizer_path, artifact.manifest.max_seq_length)
    rows = [row.input_ids for row in tokenizer.tokenize(read_texts(options.texts)[:320])]
    graphs = {"with / without": (whole, cut), "without / without": (cut, cut)}
    costs: dict[tuple[int, str], list[float]] = {}
    for turn in range(options.sessions):
        for name, pair in graphs.items():
            step = -1 if turn % 2 else 1  # the session that is opened first may be faster
            opened = [open_session(graph, options.threads) for graph in pair[::step]]
            sessions = opened[::step]
            for size in options.sizes:
                batches = [rows[at : at + size] for at in range(0, len(rows) - size + 1, size)]
                runs = [padded_inputs(batch, artifact.manifest.inputs, 0) for batch in batches]
                times = time_in_turns(sessions, runs, max(8, options.pairs // size))
                costs.setdefault((size, name), []).append(cost_percent(times))
    for (size, name), seen in costs.items():
        print(describe(size, name, seen))


def cut_output(graph: GraphProto, name: str) -> None:
    """Remove an output of a graph and, in branches too, all that nothing else needs."""
    keep = [output for output in graph.output if output.name != name]
    del graph.output[:]
    graph.output.extend(keep)
    _prune(graph, {output.name for output in graph.output})


def _prune(graph: GraphProto, wanted: set[str]) -> None:
    """Keep the nodes that ``wanted`` values need; the last node first, as they are in order."""
    kept = []
    for node in reversed(graph.node):
        if not wanted.intersection(node.output):
            continue
        branches = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        if branches:
            used = [at for at, output in enumerate(node.output) if output in wanted]
            _keep_outputs(node, branches, used)
        for branch in branches:
            inner = {output.name for output in branch.output}
            _prune(branch, inner)  # what it needs of its own is added to inner
            wanted |= inner
        wanted.update(node.input)
        kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))


def _keep_outputs(node: NodeProto, branches: Sequence[GraphProto], used: Sequence[int]) -> None:
    for values in (node.output, *(branch.output for branch in branches)):
        keep = [values[at] for at in used]
        del values[:]
        values.extend(keep)


def count_nodes(graph: GraphProto) -> int:
    """Nodes of a graph and of its branches."""
    return sum(
        1 + sum(count_nodes(attribute.g) for attribute in node.attribute if attribute.HasField("g"))
        for node in graph.node
    )


def open_session(model: onnx.ModelProto, threads: int) -> ort.InferenceSession:
    """A session on the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def time_in_turns(
    sessions: Sequence[ort.InferenceSession], runs: Sequence[dict[str, Any]], pairs: int
) -> list[tuple[float, float]]:
    """Seconds of each pair of runs, with the output and without."""
    for session, number in itertools.product(sessions, range(WARM_UP_RUNS)):
        session.run([POOLED_OUTPUT], runs[number % len(runs)])
    found = []
    for pair in range(pairs):
        inputs, seconds = runs[pair // 2 % len(runs)], [0.0, 0.0]
        for which in (0, 1) if pair % 2 else (1, 0):
            started = time.perf_counter()
            sessions[which].run([POOLED_OUTPUT], inputs)
            seconds[which] = time.perf_counter() - started
        found.append((seconds[0], seconds[1]))
    return found


def cost_percent(pairs: Sequence[tuple[float, float]]) -> float:
    """By how much the first of two sessions takes longer."""
    return 100 * (median(first / second for first, second in pairs) - 1)


def describe(size: int, name: str, costs: Sequence[float]) -> str:
    """A line with the mean cost over sessions and its interval."""
    reach = float(t.ppf(0.975, len(costs) - 1)) * stdev(costs) / sqrt(len(costs))
    return (
        f"{size} texts a run, {name}: {mean(costs):+.2f} % ({mean(costs) - reach:+.2f} to"
        f" {mean(costs) + reach:+.2f}), {len(costs)} pairs of sessions from {min(costs):+.2f} to"
        f" {max(costs):+.2f}"
    )


if __name__ == "__main__":
    main()
