"""From raw numbers to figures: medians over rounds, and ratios taken within a round.

``results.json`` holds one mapping per round, {system: figures}. A figure that was not measured is
not there, and everything made of it is None.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.load.closed_loop import LOADS, Load

Round = dict[str, Any]  # by system
Results = dict[str, Any]
Number = float | None

OURS, RAW = "s2sent", "raw"
INFINITY = ("infinity-torch", "infinity-optimum")
BEST_INFINITY = "infinity"  # the faster of those that were measured


def look_up(figures: Any, *path: str) -> Number:
    """The number at ``path`` of nested mappings; None where any step is missing."""
    for step in path:
        if not isinstance(figures, dict) or step not in figures:
            return None
        figures = figures[step]
    return figures if isinstance(figures, (int, float)) else None


def over_rounds(
    results: Results,
    figure: Callable[[Round], Number],
    combine: Callable[[Sequence[float]], float] = median,
) -> Number:
    """The median of a figure over the rounds that have it, or another combination of them."""
    values = [value for each in results["rounds"] if (value := figure(each)) is not None]
    return combine(values) if values else None


def median_at(results: Results, *path: str) -> Number:
    """The median over the rounds of the figure at ``path``, which begins with a system."""
    return over_rounds(results, lambda each: look_up(each, *path))


def ratio(above: Number, below: Number) -> Number:
    """One figure over another of the same round."""
    return above / below if above is not None and below else None


def difference(more: Number, less: Number) -> Number:
    """One figure less another of the same round."""
    return more - less if more is not None and less is not None else None


def fastest_infinity(each: Round, *path: str) -> Number:
    """The most of this figure, of infinity's engines that were measured."""
    values = [value for name in INFINITY if (value := look_up(each, name, *path)) is not None]
    return max(values, default=None)


def over_leanest_infinity(each: Round, *path: str) -> Number:
    """Our figure over the least of infinity's engines; None unless all of them were measured."""
    values = [value for name in INFINITY if (value := look_up(each, name, *path)) is not None]
    leanest = min(values) if len(values) == len(INFINITY) else None
    return ratio(look_up(each, OURS, *path), leanest)


def over(system: str, other: str, *path: str) -> Callable[[Round], Number]:
    """A figure of one system over the same figure of another, within a round.

    ``other`` may be `BEST_INFINITY`.
    """

    def figure(each: Round) -> Number:
        if other == BEST_INFINITY:
            below = fastest_infinity(each, *path)
        else:
            below = look_up(each, other, *path)
        return ratio(look_up(each, system, *path), below)

    return figure


@dataclass(frozen=True)
class Spread:
    """A figure over the rounds."""

    median: float
    least: float
    most: float


def spread_over_rounds(results: Results, figure: Callable[[Round], Number]) -> Spread | None:
    """Median, min and max of a figure over the rounds that have it."""
    values = [value for each in results["rounds"] if (value := figure(each)) is not None]
    return Spread(median(values), min(values), max(values)) if values else None


def spread_at(results: Results, *path: str) -> Spread | None:
    """The same of the figure at ``path``, which begins with a system."""
    return spread_over_rounds(results, lambda each: look_up(each, *path))


def words_at(results: Results, *path: str) -> list[str]:
    """The different words at ``path`` in the rounds, in the order in which they came."""
    found = [_step_into(each, path) for each in results["rounds"]]
    return list(dict.fromkeys(word for word in found if isinstance(word, str)))


def _step_into(figures: Any, path: Sequence[str]) -> Any:
    for step in path:
        figures = figures.get(step) if isinstance(figures, dict) else None
    return figures


def label_of(results: Results, name: str) -> str:
    """What a system is called on the page."""
    return str(results["systems"][name]["label"]) if name in results["systems"] else name


def loads_given(results: Results) -> list[Load]:
    """The loads that any system was given, in their order."""
    given = {
        name
        for each in results["rounds"]
        for figures in each.values()
        for name in figures.get("loads", {})
    }
    return [load for load in LOADS if load.name in given]


def measured(results: Results) -> list[str]:
    """The systems with any figure, in their order, without those that are measured for study."""
    return [
        name
        for name, system in results["systems"].items()
        if any(name in each for each in results["rounds"]) and not system.get("is_reference")
    ]


def open_loop_percents(results: Results, system: str) -> list[str]:
    """The open-loop loads a system was given, in percent of its capacity, rising."""
    given = {p for each in results["rounds"] for p in each.get(system, {}).get("open_loop", {})}
    return sorted(given, key=int)
