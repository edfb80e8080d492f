"""Two variants of the service in turns: what a change earns, as ratios taken within a turn.

    python -m benchmarks.turns --a VARIANT --b VARIANT [--env-b KEY=VALUE ...] [--loads c1 c64 ...]

A VARIANT is the folder of a checkout, a git revision of this repository, or a whole command that
has the word PORT in place of its port and answers POST /embed, such as another server's. First
each is started a few times alone, for its start-up time and its memory. Then each turn starts both
and loads one after the other, in an order that alternates. Needs wrk (https://github.com/wg/wrk).
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import numpy as np

from benchmarks.load.closed_loop import BY_NAME, is_wrk_installed, prepare_bodies
from benchmarks.load.idle import measure_idle_ms
from benchmarks.load.texts import Texts, prepare_texts
from benchmarks.load.window import Window, run_window
from benchmarks.machine import describe_machine
from benchmarks.systems.running import NotMeasured, Running, running
from benchmarks.systems.system import (
    DEFAULT_ARTIFACT,
    SERVICE_ROUTE,
    System,
)
from benchmarks.systems.usage import memory_mb
from benchmarks.systems.variants import Variant, read_environment
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.tokenizer import Tokenizer

LOADS = ("c1", "c16", "c64", "batch")
FIGURES = {"texts_per_second": "texts/s", "p50_ms": "p50, ms", "p99_ms": "p99, ms"}
OTHERS = "cores' time that other programs took, %"
MEMORY = "PSS after the loads, both up, MB"
MAX_TOKENS = 256
START_SECONDS = 4  # of one start and stop, for the estimate
WAIT_SECONDS = 0.5  # until a server is idle, for the estimate

Samples = dict[str, list[tuple[float, float]]]  # by figure: (a, b) of each turn


@dataclass(frozen=True)
class Plan:
    """What both variants are given."""

    loads: Sequence[str]
    turns: int
    starts: int
    window: Window
    texts: Texts
    folder: Path  # for request bodies and logs

    @property
    def expected_seconds(self) -> float:
        """About how long it all takes."""
        cell = self.window.seconds + self.window.warm_up_seconds + WAIT_SECONDS
        doubled = sum(BY_NAME[name].texts_per_request > 1 for name in self.loads)
        seconds = len(self.loads) * cell + doubled * self.window.seconds
        return 2 * (self.turns * (seconds + START_SECONDS) + self.starts * START_SECONDS)

    def window_of(self, load: str) -> Window:
        """Twice as long for large requests, which have few answers a second."""
        window, large = self.window, BY_NAME[load].texts_per_request > 1
        seconds = window.seconds * (2 if large else 1)
        return Window(seconds, window.answers, seconds, window.warm_up_seconds)


def measure_starts(a: System, b: System, plan: Plan) -> Samples:
    """Seconds to ready and PSS then, of each variant alone on the machine."""

    def start(system: System) -> tuple[float, float]:
        with running(system, _log(plan, system)) as started:
            return started.seconds_to_ready, memory_mb(started.process)["pss"]

    samples: Samples = {"start to ready, s": [], "PSS when ready, MB": []}
    for turn in range(plan.starts):
        order = (a, b) if turn % 2 == 0 else (b, a)
        seen = {system.name: start(system) for system in order}
        for index, name in enumerate(samples):
            samples[name].append((seen["a"][index], seen["b"][index]))
    return samples


def measure_loads(a: System, b: System, plan: Plan) -> Samples:
    """Every load by turns on both variants; memory at the end of a turn.

    Each turn starts both anew, by turns first: of two processes of one program one may be 5 %
    faster for as long as both run.
    """
    samples: Samples = {}
    for turn in range(plan.turns):
        order = (a, b) if turn % 2 == 0 else (b, a)
        with ExitStack() as stack:
            started = [stack.enter_context(running(x, _log(plan, x))) for x in order]
            if turn == 0:
                cosine = compare_vectors(started[0], started[1], plan.texts)
                print(f"smallest cosine of A's to B's vectors: {cosine:.6f}", flush=True)
            idle = {each.system.name: measure_idle_ms(each) for each in started}
            for load in plan.loads:
                _add_turn(samples, load, started, idle, plan)
            memory = {each.system.name: memory_mb(each.process)["pss"] for each in started}
        samples.setdefault(MEMORY, []).append((memory["a"], memory["b"]))
        print(f"turn {turn + 1} of {plan.turns}", file=sys.stderr, flush=True)
    for last in (OTHERS, MEMORY):
        samples[last] = samples.pop(last, [])
    return samples


def _log(plan: Plan, system: System) -> Path:
    return plan.folder / f"{system.name}.log"


def _add_turn(
    samples: Samples, name: str, order: Sequence[Running], idle: Mapping[str, float], plan: Plan
) -> None:
    """One load on both variants; a turn in which one could not be measured counts for neither."""
    load, window = BY_NAME[name], plan.window_of(name)
    seen = {}
    for each in order:
        which = each.system.name
        bodies = prepare_bodies("both", SERVICE_ROUTE, load, plan.texts, plan.folder)
        try:
            seen[which] = run_window(each, load, bodies, idle[which], window)
        except NotMeasured as reason:
            print(f"{load.label}, {which.upper()}: not measured: {reason}", file=sys.stderr)
            return
    for figure, label in FIGURES.items():
        pairs = samples.setdefault(f"{load.label}, {label}", [])
        pairs.append((seen["a"][figure], seen["b"][figure]))
    shares = 100 * seen["a"]["others_share"], 100 * seen["b"]["others_share"]
    samples.setdefault(OTHERS, []).append(shares)


def compare_vectors(a: Running, b: Running, texts: Texts) -> float:
    """The smallest cosine between the embeddings of the same texts, some short and some long."""
    chosen = texts.short[:16] + texts.long[:8]
    return float(np.sum(a.embed(chosen) * b.embed(chosen), axis=1).min())


def to_markdown(samples: Samples) -> str:
    """A table: medians with min and max of A and B, and the ratio B / A with its quartiles."""
    lines = ["| | A | B | B / A | quartiles | turns |", "|---|---:|---:|---:|---:|---:|"]
    for name, pairs in samples.items():
        if not pairs:
            continue
        ratios = [b / a if a else float("nan") for a, b in pairs]
        low, middle, high = _quartiles(ratios)
        sides = [_spread([pair[side] for pair in pairs]) for side in (0, 1)]
        cells = [name, *sides, f"{middle:.3f}", f"{low:.3f} to {high:.3f}", str(len(pairs))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _quartiles(values: Sequence[float]) -> list[float]:
    return quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3


def _spread(values: Sequence[float]) -> str:
    digits = 0 if median(values) >= 100 else 2
    middle, low, high = (f"{v:.{digits}f}" for v in (median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in turns and print the table."""
    options = _parse(arguments)
    if not is_wrk_installed():
        sys.exit("wrk is not installed; it is in most distributions' packages.")
    tokenizer = Tokenizer(Artifact.open(options.artifact).tokenizer_path, MAX_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        window = Window(options.seconds, options.answers, options.seconds, options.warm_up)
        texts = prepare_texts(options.texts, tokenizer)
        plan = Plan(options.loads, options.turns, options.starts, window, texts, scratch)
        print(f"expected: about {plan.expected_seconds / 60:.1f} minutes", file=sys.stderr)
        try:
            a, b = (
                Variant(name, given, serve, read_environment(environment)).open(
                    options.artifact, scratch
                )
                for name, given, serve, environment in (
                    ("a", options.a, options.serve_a, options.env_a),
                    ("b", options.b, options.serve_b, options.env_b),
                )
            )
            samples = measure_starts(a, b, plan) | measure_loads(a, b, plan)
        except NotMeasured as reason:
            sys.exit(str(reason))
    _print(options, a, b, samples)


def _print(options: argparse.Namespace, a: System, b: System, samples: Samples) -> None:
    machine = describe_machine()
    print(f"\n{machine['cores']} cores of {machine['cpu']}; {options.turns} turns,")
    print(f"{options.seconds:g} s a window, twice that for 32 texts a request.\n")
    for system in (a, b):
        environment = " ".join(f"{key}={value}" for key, value in system.environment.items())
        print(f"- {system.name.upper()}: {system.label} {environment}".rstrip())
    print(f"\n{to_markdown(samples)}")
    if options.json:
        result = {"machine": machine, "a": a.label, "b": b.label, "samples": samples}
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.turns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    for side in "ab":
        add(f"--{side}", required=side == "a", metavar="VARIANT", help="by default B is as A")
        add(f"--env-{side}", nargs="+", default=[], metavar="KEY=VALUE", help="of its environment")
        add(f"--serve-{side}", default="", help="more options for `serve`, as one string")
    add("--artifact", type=Path, default=DEFAULT_ARTIFACT, help="that both serve")
    add("--loads", nargs="+", choices=BY_NAME, default=LOADS, metavar="NAME", help=str([*BY_NAME]))
    add("--turns", type=int, default=7, help="windows of each load for each variant")
    add("--seconds", type=float, default=4, help="of a window, twice that for large requests")
    add("--answers", type=int, default=20, help="a window with fewer is not counted")
    add("--warm-up", type=float, default=1, help="seconds before each window")
    add("--starts", type=int, default=7, help="starts of each variant, alone; 0 for none")
    add("--texts", type=Path, help="one short text a line; the export's own sentences by default")
    add("--json", type=Path, help="a file for every number")
    options = parser.parse_args(arguments)
    options.b = options.b or options.a
    return options


if __name__ == "__main__":
    main()
