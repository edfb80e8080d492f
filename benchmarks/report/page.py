"""Results as people read them: a Markdown page and a plot.

python -m benchmarks.report.page FOLDER      # writes both again from FOLDER/results.json
"""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.load.closed_loop import LOADS, Load
from benchmarks.report.plot import save_plot
from benchmarks.report.results import (
    OURS,
    RAW,
    Number,
    Results,
    Round,
    measured,
    median_at,
    of_infinity,
    of_raw,
    open_loop_percents,
    over_rounds,
)
from benchmarks.report.targets import find

RESULTS = "results.json"
BESIDE = ("selector_share", "soak_memory")  # what other commands leave in the same folder
IN_PROCESS = {"c1": "one", "batch": "batches", "long": "long"}  # which calls stand where
NONE = "–"


def write_report(folder: Path) -> str:
    """Write results.md and plot.svg beside results.json; returns the Markdown."""
    results = read_results(folder)
    text = to_markdown(results)
    (folder / "results.md").write_text(text, encoding="utf-8")
    save_plot(results, folder / "plot.svg")
    return text


def read_results(folder: Path) -> Results:
    """The results, with what the commands beside the bench left in the folder."""
    results: Results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    for name in BESIDE:
        path = folder / f"{name}.json"
        if path.is_file():
            results[name] = json.loads(path.read_text(encoding="utf-8"))
    return results


def to_markdown(results: Results) -> str:
    """The whole page."""
    sections = [
        ("Side by side", _introduction(results)),
        ("Texts per second", _throughput_table(results)),
        ("S2Sent beside the others, ratios within a round", _ratio_table(results)),
        ("Latency, p50 / p99 in ms", _latency_table(results)),
        ("Open loop", _open_loop_table(results)),
        ("Memory, start and processor time", _resource_table(results)),
        ("Targets", _target_table(results)),
        ("Not measured", _not_measured(results)),
        ("Commands", _commands(results)),
    ]
    return "\n".join(f"## {title}\n\n{body}\n" for title, body in sections)


def _introduction(results: Results) -> str:
    machine, settings, tokens = results["machine"], results["settings"], results["tokens"]
    rounds = len(results["rounds"])
    note = "" if rounds >= 3 else " **Fewer than three rounds: to try the bench, not a result.**"
    return (
        f"`{settings['command']}`, {results['date']}, commit {str(results['commit'])[:10]}: medians"
        f" of {rounds} round(s), {settings['seconds']} s a load.{note}\n\n"
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gb']:.0f} GB,"
        f" {machine['system']}. The load generators run on the same cores. Short texts have"
        f" {tokens['short']['mean']:.1f} tokens on average, {tokens['short']['longest']} at most,"
        f" long ones {tokens['long']['mean']:.0f}. Every system computes in fp32; all but"
        " artifacts/default hold the weights of all-MiniLM-L6-v2."
    )


def _throughput_table(results: Results) -> str:
    def cell(name: str, load: str) -> str:
        figure = load if _is_server(results, name) else IN_PROCESS.get(load, "")
        return _number(median_at(results, name, "loads", figure, "texts_per_second"), 0)

    note = (
        "\n\nIn process, one caller: one text a call, batches of 32, long texts in batches of 32."
    )
    return _by_system_and_load(results, LOADS, cell) + note


def _ratio_table(results: Results) -> str:
    def row(what: str, figure: Callable[..., Number]) -> list[str]:
        return [what, *(_number(over_rounds(results, partial(figure, load=n))) for n in names)]

    def over_infinity(each: Round, load: str) -> Number:
        return of_infinity(each, "loads", load, "texts_per_second")

    names = [load.name for load in LOADS]
    of_raw_default = partial(of_raw, system=f"{OURS}-default", raw=f"{RAW}-default")
    rows = [
        row("texts/s, over infinity's better engine", over_infinity),
        row("texts/s, over the raw limit", of_raw),
        row("the same, artifacts/default", of_raw_default),
    ]
    return _table(["", *(load.label for load in LOADS)], rows)


def _latency_table(results: Results) -> str:
    def cell(name: str, load: str) -> str:
        figure = load if _is_server(results, name) else {"c1": "one"}.get(load, "")
        p50 = median_at(results, name, "loads", figure, "p50_ms")
        p99 = median_at(results, name, "loads", figure, "p99_ms")
        return f"{_number(p50, 1)} / {_number(p99, 1)}" if p50 is not None else NONE

    return _by_system_and_load(results, [load for load in LOADS if load.name != "batch"], cell)


def _open_loop_table(results: Results) -> str:
    columns = {
        "requests/s sent": ("rate", 0),
        "good answers/s": ("goodput_per_second", 0),
        "p50 ms": ("p50_ms", 1),
        "p99 ms": ("p99_ms", 1),
        "p99.9 ms": ("p99.9_ms", 1),
        "refused": ("refused", 0),
        "p99 of a refusal, ms": ("refusal_p99_ms", 1),
        "failed": ("failed", 0),
        "lost": ("lost", 0),
        "sent late by, p99 ms": ("lateness_p99_ms", 2),
        "generator's CPU, s": ("generator_cpu_seconds", 2),
    }
    rows = [
        [
            f"{_label(results, name)}, {percent} %",
            *(
                _number(median_at(results, name, "open_loop", percent, figure), digits)
                for figure, digits in columns.values()
            ),
        ]
        for name in measured(results)
        for percent in open_loop_percents(results, name)
    ]
    note = (
        "\n\nPercent of each system's own capacity: its most texts/s, of one text a request, at any"
        " number of connections in the same round. Latencies count from the intended send times."
    )
    return _table(["", *columns], rows) + note


def _resource_table(results: Results) -> str:
    def row(name: str) -> list[str]:
        batches = "batch" if _is_server(results, name) else "batches"
        cost = "cpu_seconds_per_1000_texts"
        return [
            _label(results, name),
            _number(median_at(results, name, "seconds_to_ready"), 2),
            _number(median_at(results, name, "memory_mb", "pss"), 0),
            _number(median_at(results, name, "memory_at_rest_mb", "pss"), 0),
            _number(median_at(results, name, "loads", "c64", cost), 2),
            _number(median_at(results, name, "loads", batches, cost), 2),
            _number(median_at(results, name, "cosine"), 6),
        ]

    head = ["", "start to ready, s", "PSS after the run, MB", "after 5 s of rest"]
    head += ["CPU s / 1000 texts, 64 x 1", "CPU s / 1000 texts, batches"]
    head += ["least cosine to sentence-transformers"]
    note = (
        "\n\nMemory and processor time are those of the whole process tree. The cosine of"
        " artifacts/default is to the embedding torch gave its canary."
    )
    return _table(head, [row(name) for name in measured(results)]) + note


def _target_table(results: Results) -> str:
    words = {True: "met", False: "**missed**", None: "not measured"}
    rows = []
    for finding in find(results):
        target = finding.target
        aim = f"{target.sense} {target.bound:g} {target.unit}".strip()
        seen = NONE if finding.seen is None else f"{finding.seen:.2f} {target.unit}".strip()
        rows.append([target.what, aim, seen, words[finding.is_met]])
    return _table(["what", "target", "seen", ""], rows)


def _not_measured(results: Results) -> str:
    reasons = list(results["not_measured"].items())
    for each in results["rounds"]:
        for name, figures in each.items():
            loads = figures.get("loads", {}).values()
            reasons += [(name, load["not_measured"]) for load in loads if "not_measured" in load]
    lines = [f"- {_label(results, name)}: {reason}" for name, reason in dict.fromkeys(reasons)]
    return "\n".join(lines) or "Nothing was left out."


def _commands(results: Results) -> str:
    lines = []
    for system in results["systems"].values():
        versions = ", ".join(f"{name} {version}" for name, version in system["versions"].items())
        lines.append(f"- {system['label']}: `{' '.join(system['command'])}` ({versions})")
    return "\n".join(lines)


def _by_system_and_load(
    results: Results, loads: Sequence[Load], cell: Callable[[str, str], str]
) -> str:
    rows = [
        [_label(results, name), *(cell(name, load.name) for load in loads)]
        for name in measured(results)
    ]
    return _table(["", *(load.label for load in loads)], rows)


def _is_server(results: Results, name: str) -> bool:
    return bool(results["systems"][name]["is_server"])


def _label(results: Results, name: str) -> str:
    return str(results["systems"][name]["label"])


def _number(value: Number, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Write the page and the plot of a folder again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    print(write_report(parser.parse_args().folder))


if __name__ == "__main__":
    main()
