"""The service beside its peers: the same texts, weights and precision, in turns on one machine.

    python -m benchmarks [--quick] [--texts FILE] [--rounds N] [--seconds S] [--budget MINUTES]
                         [--systems NAME ...] [--loads NAME ...] [--tei PATH] [--out FOLDER]
                         [--weights NAME --cache FOLDER]

Each round starts every system once, in another order, checks its vectors, loads it and ends it.
Before each load the system is warmed up at that load, and has to be idle again. Needs wrk
(https://github.com/wg/wrk), a C compiler `cc` for the open loop, the peers' environments
(`make peers`), and for text-embeddings-inference the path of its router. Writes results.json,
results.md, summary.md, plot.svg and logs/ into FOLDER.
Absolute times mean little on a shared machine: read the ratios, which are taken within a round.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.load.closed_loop import BY_NAME, is_wrk_installed
from benchmarks.load.open_loop import GeneratorFailed, build_generator
from benchmarks.load.texts import Texts, prepare_texts
from benchmarks.load.window import Window
from benchmarks.machine import describe_machine, describe_source
from benchmarks.report.folder import RESULTS, write_report
from benchmarks.report.results import Results
from benchmarks.rounds import ONE_TEXT_LOADS, OPEN_LOOP, Plan, run_round
from benchmarks.systems.catalogue import BY_DEFAULT, SYSTEMS, all_systems
from benchmarks.systems.models import WEIGHTS, prepare_models
from benchmarks.systems.peers import TEI_PROGRAM
from benchmarks.systems.running import installed_versions
from benchmarks.systems.system import DEFAULT_ARTIFACT, ROOT, System
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.tokenizer import Tokenizer

MAX_TOKENS = 256
LOADS = ("c1", "c16", "c64", "batch")  # by default
QUICK = {"rounds": 1, "seconds": 2.0, "answers": 1, "warm_up": 1.0}
FULL = {"rounds": 3, "seconds": 15.0, "answers": 200, "warm_up": 2.0}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write after every round, and print the Markdown page."""
    options = _parse(arguments)
    _check_generators(options.loads)
    tokenizer = Tokenizer(Artifact.open(DEFAULT_ARTIFACT).tokenizer_path, MAX_TOKENS)
    texts = prepare_texts(options.texts, tokenizer)
    check_texts = texts.short[:24] + texts.long[:8]
    models = prepare_models(options.cache, check_texts, options.weights)
    every = all_systems(models, check_texts, options.peers, options.tei, shlex.split(options.serve))
    systems = [system for system in every if system.name in options.systems]
    results = _begin(options, texts, systems)
    logs = options.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        most = max(options.seconds, options.most_seconds)
        window = Window(options.seconds, options.answers, most, options.warm_up)
        plan = Plan(frozenset(options.loads), texts, window, Path(folder), logs)
        run_rounds(systems, plan, options, results)
    print(write_report(options.out))


def run_rounds(
    systems: Sequence[System], plan: Plan, options: argparse.Namespace, results: Results
) -> None:
    """All rounds, or as many as the budget has time for, each beginning with another system."""
    expected = plan.expected_seconds(systems)
    total = options.rounds * expected / 60
    print(f"expected: {total:.0f} minutes or more, {options.rounds} rounds", file=sys.stderr)
    started = time.monotonic()
    for number in range(options.rounds):
        gone = time.monotonic() - started
        if number and options.budget and gone + expected > 60 * options.budget:
            print(f"no time for round {number + 1}", file=sys.stderr)
            break
        turn = number * len(systems) // options.rounds
        turned = [*systems[turn:], *systems[:turn]]
        results["rounds"].append(run_round(turned, plan, results["not_measured"]))
        results["settings"]["minutes"] = (time.monotonic() - started) / 60
        expected = (time.monotonic() - started) / (number + 1)
        (options.out / RESULTS).write_text(json.dumps(results, indent=1), encoding="utf-8")


def _check_generators(loads: Sequence[str]) -> None:
    """End with a message where what sends the loads is missing."""
    if not is_wrk_installed():
        sys.exit("wrk is not installed; it is in most distributions' packages.")
    if OPEN_LOOP in loads:
        try:
            build_generator()
        except GeneratorFailed as reason:
            sys.exit(str(reason))


def _begin(options: argparse.Namespace, texts: Texts, systems: Sequence[System]) -> Results:
    """The results before the first round: all that is known without measuring."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        **describe_source(ROOT),
        "settings": {
            "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
            "seconds": options.seconds,
            "answers": options.answers,
            "loads": options.loads,
            "weights": options.weights,
        },
        "machine": describe_machine(),
        "tokens": texts.tokens,
        "systems": {
            system.name: {
                "label": system.label,
                "command": system.command,
                "folder": str(system.folder),
                "environment": dict(system.environment),
                "is_server": system.route is not None,
                "is_reference": system.is_reference,
                "versions": installed_versions(system),
            }
            for system in systems
        },
        "not_measured": {},
        "rounds": [],
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    loads, names = (*BY_NAME, OPEN_LOOP), ", ".join(SYSTEMS)
    add(
        "--weights",
        default=WEIGHTS,
        help="of all systems but artifacts/default: a model that"
        " averages its tokens; give it a --cache of its own",
    )
    add("--quick", action="store_true", help="one round of 2 s a load, to see that all works")
    add("--rounds", type=int, help="3 by default")
    add("--seconds", type=float, help="of each load; 15 by default")
    add("--answers", type=int, help="that a cell needs, 200 by default: windows grow until then")
    add("--most-seconds", type=float, default=60, help="that a window may grow to")
    add("--warm-up", type=float, help="seconds at each load before its window; 2 by default")
    add("--budget", type=float, metavar="MINUTES", help="begin no round that would end after it")
    add("--systems", nargs="+", choices=SYSTEMS, default=BY_DEFAULT, metavar="NAME", help=names)
    add("--loads", nargs="+", choices=loads, default=LOADS, metavar="NAME", help=", ".join(loads))
    add("--texts", type=Path, help="one short text a line; the export's own sentences by default")
    add("--out", type=Path, default=ROOT / "benchmarks/results")
    add("--cache", type=Path, default=ROOT / ".bench", help="where model files are kept")
    add("--serve", default="", help="options for our service, such as '--threads 1'")
    add("--peers", type=Path, default=ROOT / ".venv/peers", help="the peers' environments")
    add("--tei", default=TEI_PROGRAM, metavar="PATH", help="text-embeddings-inference's router")
    options = parser.parse_args(arguments)
    options.peers, options.cache = options.peers.resolve(), options.cache.resolve()
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if OPEN_LOOP in options.loads and not set(ONE_TEXT_LOADS) & set(options.loads):
        parser.error(f"{OPEN_LOOP} needs a capacity: add one of {', '.join(ONE_TEXT_LOADS)}.")
    return options


if __name__ == "__main__":
    main()
