"""What the service is meant to reach, each target with how it is seen in the results."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.load.closed_loop import BY_NAME
from benchmarks.report.results import (
    BEST_INFINITY,
    OURS,
    RAW,
    Number,
    Results,
    Round,
    difference,
    look_up,
    over,
    over_leanest_infinity,
    over_rounds,
    ratio,
)

Sense = Literal[">=", "<="]
INT8, RAW_INT8 = f"{OURS}-int8", f"{RAW}-int8"
NAMES = {
    BEST_INFINITY: "infinity",
    "tei": "TEI",
    "tei-int8": "TEI int8",
    "plain-fastapi": "plain FastAPI",
    "plain-fastapi-int8": "plain FastAPI int8",
    RAW: "the raw limit",
    RAW_INT8: "the int8 raw limit",
}
# Texts per second of (ours, another) by load: at least so many times the other's.
THROUGHPUT = {
    (OURS, BEST_INFINITY): {"c1": 2.0, "c64": 3.0, "batch": 2.5},
    (INT8, BEST_INFINITY): {"c1": 3.0, "c64": 5.0, "batch": 4.5},
    (OURS, "tei"): {"c16": 2.0, "c64": 2.2, "batch": 2.4},
    (INT8, "tei-int8"): {"c16": 1.7, "c64": 2.0, "batch": 2.2},
    (OURS, RAW): {"c64": 0.90, "batch": 0.95},
    (INT8, RAW_INT8): {"c64": 0.90, "batch": 0.95},
}
# Latencies of a lone request: at most so many times the other's.
LONE = (
    (OURS, "tei", "p50_ms", 1.00),
    (OURS, "tei", "p99_ms", 1.00),
    (OURS, "plain-fastapi", "p50_ms", 1.05),
    (INT8, "tei-int8", "p50_ms", 1.15),
    (INT8, "tei-int8", "p99_ms", 1.00),
    (INT8, "plain-fastapi-int8", "p50_ms", 1.05),
)


@dataclass(frozen=True)
class Target:
    """An aim, and how to see from the results whether it is met."""

    what: str
    sense: Sense
    bound: float
    unit: str
    figure: Callable[[Results], Number]


@dataclass(frozen=True)
class Finding:
    """A target with what was seen; ``is_met`` is None where it was not measured."""

    target: Target
    seen: Number

    @property
    def is_met(self) -> bool | None:
        """Whether the figure is on the right side of the bound."""
        if self.seen is None:
            return None
        target = self.target
        return self.seen >= target.bound if target.sense == ">=" else self.seen <= target.bound


def find(results: Results) -> list[Finding]:
    """Every target with what was seen."""
    return [Finding(target, target.figure(results)) for target in TARGETS]


def _median(figure: Callable[[Round], Number]) -> Callable[[Results], Number]:
    return lambda results: over_rounds(results, figure)


def _most(*path: str) -> Callable[[Results], Number]:
    return lambda results: over_rounds(results, lambda each: look_up(each, OURS, *path), max)


def _p50(each: Round, system: str = OURS) -> Number:
    return look_up(each, system, "loads", "c1", "p50_ms")


def _throughput_targets() -> Iterator[Target]:
    for (ours, other), bounds in THROUGHPUT.items():
        ours_too = ", int8" if ours == INT8 else ""
        for load, bound in bounds.items():
            what = f"texts/s at {BY_NAME[load].short_label}{ours_too}, over {NAMES[other]}"
            figure = _median(over(ours, other, "loads", load, "texts_per_second"))
            yield Target(what, ">=", bound, "x", figure)


def _lone_targets() -> Iterator[Target]:
    for ours, other, percentile, bound in LONE:
        ours_too = ", int8" if ours == INT8 else ""
        what = f"{percentile[:3]} at 1 x 1{ours_too}, over {NAMES[other]}"
        yield Target(what, "<=", bound, "x", _median(over(ours, other, "loads", "c1", percentile)))
    for ours, raw, ours_too in ((OURS, RAW, ""), (INT8, RAW_INT8, ", int8")):
        yield _above_the_run(ours, raw, f"p50 at 1 x 1{ours_too}, above tokenise + run")


def _above_the_run(ours: str, raw: str, what: str) -> Target:
    figure = _median(lambda each: difference(_p50(each, ours), _p50(each, raw)))
    return Target(what, "<=", 1.0, "ms", figure)


OPEN_LOOP = (
    Target(
        "p99 at 80 % open-loop load, over the p50 at 1 connection",
        "<=",
        5.0,
        "x",
        _median(lambda each: ratio(look_up(each, OURS, "open_loop", "80", "p99_ms"), _p50(each))),
    ),
    Target(
        "goodput at 120 % load, over capacity",
        ">=",
        0.95,
        "x",
        _median(
            lambda each: ratio(
                look_up(each, OURS, "open_loop", "120", "goodput_per_second"),
                look_up(each, OURS, "open_loop", "120", "capacity"),
            )
        ),
    ),
    Target(
        "p99 of a refusal with 429 at 120 % load",
        "<=",
        10.0,
        "ms",
        _median(lambda each: look_up(each, OURS, "open_loop", "120", "refusal_p99_ms")),
    ),
    Target(
        "requests without an answer at 120 % load, in the worst round",
        "<=",
        0.0,
        "",
        _most("open_loop", "120", "lost"),
    ),
)
RESOURCES = (
    Target(
        "resident memory after the run, over infinity's leaner engine",
        "<=",
        0.4,
        "x",
        _median(lambda each: over_leanest_infinity(each, "memory_mb", "rss")),
    ),
    Target(
        "the same after 5 s of rest",
        "<=",
        0.4,
        "x",
        _median(lambda each: over_leanest_infinity(each, "memory_at_rest_mb", "rss")),
    ),
    Target(
        "growth of memory over 10 minutes of changing lengths (soak_memory)",
        "<=",
        2.0,
        "%",
        lambda results: look_up(results, "soak_memory", "growth_percent"),
    ),
    Target(
        "process start to ready",
        "<=",
        1.0,
        "s",
        _median(lambda each: look_up(each, OURS, "seconds_to_ready")),
    ),
)
TARGETS = (*_lone_targets(), *_throughput_targets(), *OPEN_LOOP, *RESOURCES)
