"""The service beside its peers: the same texts, weights and precision, in turns on one machine.

    python -m benchmarks [--quick] [--texts FILE] [--rounds N] [--seconds S] [--out FOLDER]
                         [--systems NAME ...] [--loads NAME ...]

Each round starts every system once, in another order, checks its vectors, loads it and ends it.
Needs wrk (https://github.com/wg/wrk), a C compiler `cc` for the open loop, and the peers'
environments (`make peers`). Writes results.json, results.md, plot.svg and logs/ into FOLDER.
Absolute times mean little on a shared machine: read the ratios, which are taken within a round.
"""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.load.closed_loop import BY_NAME, is_wrk_installed
from benchmarks.load.open_loop import GeneratorFailed, build_generator
from benchmarks.load.texts import Texts, prepare_texts
from benchmarks.machine import describe_machine
from benchmarks.report.page import RESULTS, write_report
from benchmarks.report.results import Results
from benchmarks.rounds import ONE_TEXT_LOADS, OPEN_LOOP, Plan, run_round
from benchmarks.systems.catalogue import DEFAULT_ARTIFACT, ROOT, System, all_systems
from benchmarks.systems.models import prepare_models
from benchmarks.systems.running import installed_versions
from model.artifact.reader import Artifact
from model.runtime.tokenizer import Tokenizer
from training.record import commit

SYSTEMS = (
    *("s2sent", "raw", "infinity-torch", "infinity-optimum", "s2sent-default", "raw-default"),
    *("s2sent-int8", "raw-int8", "fastapi", "encode", "fastembed"),
)
MAX_TOKENS = 256


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write after every round, and print the Markdown page."""
    options = _parse(arguments)
    _check_generators(options.loads)
    tokenizer = Tokenizer(Artifact.open(DEFAULT_ARTIFACT).tokenizer_path, MAX_TOKENS)
    texts = prepare_texts(options.texts, tokenizer)
    check_texts = texts.short[:24] + texts.long[:8]
    models = prepare_models(options.cache, check_texts)
    every = all_systems(models, check_texts, options.peers, shlex.split(options.serve))
    systems = [system for system in every if system.name in options.systems]
    results = _begin(options, texts, systems)
    logs = options.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(frozenset(options.loads), texts, options.seconds, Path(folder), logs)
        for number in range(options.rounds):
            turn = number % len(systems)
            turned = systems[turn:] + systems[:turn]
            results["rounds"].append(run_round(turned, plan, results["not_measured"]))
            (options.out / RESULTS).write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(write_report(options.out))


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
        "commit": commit(ROOT),
        "settings": {
            "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
            "seconds": options.seconds,
            "loads": options.loads,
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
                "versions": _versions(system),
            }
            for system in systems
        },
        "not_measured": {},
        "rounds": [],
    }


def _versions(system: System) -> dict[str, str]:
    return installed_versions(system.python, system.packages) if system.python.exists() else {}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0] if __doc__ else None
    )
    add = parser.add_argument
    loads = (*BY_NAME, OPEN_LOOP)
    add("--quick", action="store_true", help="one round of 2 s a load, to see that all works")
    add("--rounds", type=int, help="3 by default")
    add("--seconds", type=int, help="of each load; 6 by default")
    add("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, metavar="NAME")
    add("--loads", nargs="+", choices=loads, default=loads, metavar="NAME", help=", ".join(loads))
    add("--texts", type=Path, help="one short text a line; the export's own sentences by default")
    add("--out", type=Path, default=ROOT / "benchmarks/results")
    add("--cache", type=Path, default=ROOT / ".bench", help="where model files are kept")
    add("--serve", default="", help="options for our service, such as '--threads 1'")
    add("--peers", type=Path, default=ROOT / ".venv/peers", help="the peers' environments")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (2 if options.quick else 6)
    if OPEN_LOOP in options.loads and not set(ONE_TEXT_LOADS) & set(options.loads):
        parser.error(f"{OPEN_LOOP} needs a capacity: add one of {', '.join(ONE_TEXT_LOADS)}.")
    return options


if __name__ == "__main__":
    main()
