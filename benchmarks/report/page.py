"""The results as a Markdown page."""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from benchmarks.load.closed_loop import LOADS
from benchmarks.report.results import (
    BEST_INFINITY,
    OURS,
    RAW,
    Results,
    label_of,
    loads_given,
    measured,
    median_at,
    open_loop_percents,
    over,
    spread_at,
    spread_over_rounds,
    words_at,
)
from benchmarks.report.tables import NONE, format_number, format_spread, to_table
from benchmarks.report.targets import NAMES, find

INSTRUCTIONS = {  # flags of /proc/cpuinfo
    "AVX2": {"avx2"},
    "AVX-512": {"avx512f"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "AMX": {"amx_tile"},
}
RATIOS = (
    (OURS, (BEST_INFINITY, "tei", "plain-fastapi", RAW)),
    (f"{OURS}-int8", (BEST_INFINITY, "tei-int8", "plain-fastapi-int8", f"{RAW}-int8")),
    (f"{OURS}-default", (f"{RAW}-default",)),
)


def to_markdown(results: Results) -> str:
    """The whole page."""
    sections = [
        ("Side by side", _introduction(results)),
        ("Texts per second", _throughput_table(results)),
        ("A lone request, 1 x 1, in ms", _lone_table(results)),
        ("S2Sent beside the others, ratios of texts/s within a round", _ratio_table(results)),
        ("Latency, p50 / p99 in ms", _latency_table(results)),
        ("Open loop", _open_loop_table(results)),
        ("Memory, start and processor time", _resource_table(results)),
        ("Targets", _target_table(results)),
        ("Not measured", _not_measured(results)),
        ("Commands", _commands(results)),
    ]
    return "\n".join(f"## {title}\n\n{body}\n" for title, body in sections if body)


def _introduction(results: Results) -> str:
    machine, settings, tokens = results["machine"], results["settings"], results["tokens"]
    rounds = len(results["rounds"])
    note = "" if rounds >= 3 else " **Fewer than three rounds: to try the bench, not a result.**"
    changed = " with uncommitted changes" if results.get("dirty") else ""
    minutes = f" in {settings['minutes']:.0f} minutes" if "minutes" in settings else ""
    answers = f" and {settings['answers']} answers" if "answers" in settings else ""
    commit = f"{str(results['commit'])[:10]}{changed}"
    weights = settings.get("weights", "all-MiniLM-L6-v2").rpartition(":")[2]
    return (
        f"`{settings['command']}`, {results['date']}, commit {commit}:"
        f" medians of {rounds} round(s){minutes}, with min and max. A window is at least"
        f" {settings['seconds']:g} s{answers} long, at the load it was warmed up at, and begins"
        f" when a lone request is as fast as before any load.{note}\n\n"
        f"{machine['cores']} cores of {machine['cpu']}{_instructions(machine)},"
        f" {machine['memory_gb']:.0f} GB,"
        f" {machine['system']}. The load generators run on the same cores."
        f"{_others(results)} Short texts have"
        f" {tokens['short']['mean']:.1f} tokens on average, {tokens['short']['longest']} at most,"
        f" long ones {tokens['long']['mean']:.0f}. All systems compute in float32 but those named"
        f" int8; all but artifacts/default hold the weights of {weights}."
    )


def _instructions(machine: Mapping[str, Any]) -> str:
    """The vector instructions that tell apart processors which go by one name."""
    found = [name for name, flags in INSTRUCTIONS.items() if flags & {*machine["cpu_flags"]}]
    return f" ({', '.join(found)})" if found else ""


def _others(results: Results) -> str:
    """How much of the cores' time went elsewhere while loads were timed."""
    shares = [
        share
        for each in results["rounds"]
        for figures in each.values()
        for load in figures.get("loads", {}).values()
        if (share := load.get("others_share")) is not None
    ]
    if not shares:
        return ""
    return (
        f" Other programs and other machines on the same host took {median(shares):.0%} of the"
        f" cores in the median window and {max(shares):.0%} in the worst."
    )


def _throughput_table(results: Results) -> str:
    def cell(name: str, load: str) -> str:
        return format_spread(spread_at(results, name, "loads", load, "texts_per_second"), 0)

    note = (
        "\n\nConnections x texts a request. In process: one caller, one text or 32 a call. The raw"
        " limit has as many texts at hand as the load has in flight, and is the fastest of"
        " {one session with all threads, one session a core} x {1 to 32 texts a run}"
    )
    return f"{_by_system_and_load(results, cell)}{note}{_raw_ways(results)}."


def _raw_ways(results: Results) -> str:
    """Which way was the fastest, by load."""
    ways = [
        f"{load.short_label}: {' or '.join(found)}"
        for load in LOADS
        if (found := words_at(results, RAW, "loads", load.name, "way"))
    ]
    return f" ({'; '.join(ways)})" if ways else ""


def _lone_table(results: Results) -> str:
    rows = []
    for name in measured(results):
        p50, p99 = (spread_at(results, name, "loads", "c1", f"p{p}_ms") for p in (50, 99))
        if p50:
            rows.append([label_of(results, name), format_spread(p50), format_spread(p99)])
    return to_table(["", "p50", "p99"], rows)


def _ratio_table(results: Results) -> str:
    loads = loads_given(results)
    rows = []
    for system, others in RATIOS:
        for other in others:
            figures = [over(system, other, "loads", x.name, "texts_per_second") for x in loads]
            spreads = [spread_over_rounds(results, figure) for figure in figures]
            if any(spreads):
                below = NAMES.get(other, label_of(results, other))
                name = f"{label_of(results, system)}, over {below}"
                rows.append([name, *map(format_spread, spreads)])
    note = "\n\ninfinity: the faster of its engines that were measured."
    return to_table(["", *(load.short_label for load in loads)], rows) + note


def _latency_table(results: Results) -> str:
    def cell(name: str, load: str) -> str:
        p50 = median_at(results, name, "loads", load, "p50_ms")
        p99 = median_at(results, name, "loads", load, "p99_ms")
        if p50 is None or not results["systems"][name]["is_server"]:
            return NONE
        return f"{format_number(p50, 1)} / {format_number(p99, 1)}"

    return _by_system_and_load(results, cell)


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
            f"{label_of(results, name)}, {percent} %",
            *(
                format_number(median_at(results, name, "open_loop", percent, figure), digits)
                for figure, digits in columns.values()
            ),
        ]
        for name in measured(results)
        for percent in open_loop_percents(results, name)
    ]
    if not rows:
        return ""
    note = (
        "\n\nPercent of each system's own capacity: its most texts/s, of one text a request, at any"
        " number of connections in the same round. Latencies count from the intended send times."
    )
    return to_table(["", *columns], rows) + note


def _resource_table(results: Results) -> str:
    def row(name: str) -> list[str]:
        cost = "cpu_seconds_per_1000_texts"
        columns = {
            ("seconds_to_ready",): 2,
            ("memory_mb", "rss"): 0,
            ("memory_at_rest_mb", "rss"): 0,
            ("loads", "c64", cost): 2,
            ("loads", "batch", cost): 2,
            ("cosine",): 6,
        }
        cells = [
            format_number(median_at(results, name, *path), digits)
            for path, digits in columns.items()
        ]
        return [label_of(results, name), *cells]

    head = ["", "start to ready, s", "memory after the run, MB", "after 5 s of rest"]
    head += ["CPU s / 1000 texts, 64 x 1", "CPU s / 1000 texts, 4 x 32"]
    head += ["least cosine to sentence-transformers"]
    note = (
        "\n\nMemory (resident) and processor time are those of the whole process tree, mostly one"
        " process; the raw limit holds a session for all cores and one for each. The cosine of"
        " artifacts/default is to the embedding torch gave its canary."
    )
    return to_table(head, [row(name) for name in measured(results)]) + note


def _target_table(results: Results) -> str:
    words = {True: "met", False: "**missed**", None: "not measured"}
    rows = []
    for finding in find(results):
        target = finding.target
        aim = f"{target.sense} {target.bound:g} {target.unit}".strip()
        seen = NONE if finding.seen is None else f"{finding.seen:.2f} {target.unit}".strip()
        rows.append([target.what, aim, seen, words[finding.is_met]])
    return to_table(["what", "target", "seen", ""], rows)


def _not_measured(results: Results) -> str:
    reasons = list(results["not_measured"].items())
    for each in results["rounds"]:
        for name, figures in each.items():
            loads = figures.get("loads", {}).values()
            reasons += [(name, load["not_measured"]) for load in loads if "not_measured" in load]
            reasons += [
                (name, f"{failed} requests of {load['requests']} were refused or not answered")
                for load in loads
                if (failed := load.get("failed", 0) + load.get("unanswered", 0))
            ]
    lines = [f"- {label_of(results, name)}: {reason}" for name, reason in dict.fromkeys(reasons)]
    return "\n".join(lines) or "Nothing was left out."


def _commands(results: Results) -> str:
    lines = []
    for system in results["systems"].values():
        versions = ", ".join(f"{name} {version}" for name, version in system["versions"].items())
        lines.append(f"- {system['label']}: `{' '.join(system['command'])}` ({versions})")
    return "\n".join(lines)


def _by_system_and_load(results: Results, cell: Callable[[str, str], str]) -> str:
    given = loads_given(results)
    rows = []
    for name in measured(results):
        cells = [cell(name, load.name) for load in given]
        if set(cells) != {NONE}:
            rows.append([label_of(results, name), *cells])
    return to_table(["", *(load.short_label for load in given)], rows)
