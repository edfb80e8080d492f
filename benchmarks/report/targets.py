"""What the service is meant to reach, each target with how it is seen in the results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.report.results import (
    OURS,
    RAW,
    Number,
    Results,
    Round,
    difference,
    look_up,
    of_infinity,
    of_raw,
    over_rounds,
    ratio,
)


@dataclass(frozen=True)
class Target:
    """An aim, and how to see from the results whether it is met."""

    what: str
    sense: Literal[">=", "<="]
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


def _median(figure: Callable[[Round], Number]) -> Callable[[Results], Number]:
    return lambda results: over_rounds(results, figure)


def _most(*path: str) -> Callable[[Results], Number]:
    return lambda results: over_rounds(results, lambda each: look_up(each, OURS, *path), max)


def _p50(each: Round, system: str = OURS, load: str = "c1") -> Number:
    return look_up(each, system, "loads", load, "p50_ms")


TARGETS = (
    Target(
        "64 connections x 1 text, texts/s, over infinity's better engine",
        ">=",
        3.0,
        "x",
        _median(lambda each: of_infinity(each, "loads", "c64", "texts_per_second")),
    ),
    Target(
        "64 connections x 1 text, texts/s, over the raw limit",
        ">=",
        0.90,
        "x",
        _median(lambda each: of_raw(each, "c64")),
    ),
    Target(
        "4 connections x 32 texts, texts/s, over infinity's better engine",
        ">=",
        2.5,
        "x",
        _median(lambda each: of_infinity(each, "loads", "batch", "texts_per_second")),
    ),
    Target(
        "4 connections x 32 texts, texts/s, over the raw limit",
        ">=",
        0.95,
        "x",
        _median(lambda each: of_raw(each, "batch")),
    ),
    Target(
        "p50 at 1 connection, over infinity's better engine",
        "<=",
        0.3,
        "x",
        _median(lambda each: of_infinity(each, "loads", "c1", "p50_ms", least=True)),
    ),
    Target(
        "p50 at 1 connection, above tokenise + run",
        "<=",
        0.8,
        "ms",
        _median(lambda each: difference(_p50(each), _p50(each, RAW, "one"))),
    ),
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
    Target(
        "resident memory (PSS) after the run, over infinity's leaner engine",
        "<=",
        0.4,
        "x",
        _median(lambda each: of_infinity(each, "memory_mb", "pss", least=True)),
    ),
    Target(
        "the same after 5 s of rest",
        "<=",
        0.4,
        "x",
        _median(lambda each: of_infinity(each, "memory_at_rest_mb", "pss", least=True)),
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
    Target(
        "selector's share of inference time (selector_share)",
        "<=",
        1.0,
        "%",
        lambda results: look_up(results, "selector_share", "share_percent"),
    ),
)


def find(results: Results) -> list[Finding]:
    """Every target with what was seen."""
    return [Finding(target, target.figure(results)) for target in TARGETS]
