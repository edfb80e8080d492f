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
BEST_INFINITY = "infinity"  # the faster of them


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


def best_infinity(each: Round, *path: str, least: bool = False) -> Number:
    """The better of infinity's two engines in this figure."""
    values = [value for name in INFINITY if (value := look_up(each, name, *path)) is not None]
    return (min if least else max)(values, default=None)


def of_infinity(each: Round, *path: str, least: bool = False) -> Number:
    """Our figure over that of infinity's better engine."""
    return ratio(look_up(each, OURS, *path), best_infinity(each, *path, least=least))


def over(system: str, other: str, *path: str) -> Callable[[Round], Number]:
    """A figure of one system over the same figure of another, within a round.

    ``other`` may be `BEST_INFINITY`, the faster of infinity's engines.
    """

    def figure(each: Round) -> Number:
        if other == BEST_INFINITY:
            below = best_infinity(each, *path)
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
    """The systems with any figure, in their order."""
    return [name for name in results["systems"] if any(name in each for each in results["rounds"])]


def open_loop_percents(results: Results, system: str) -> list[str]:
    """The open-loop loads a system was given, in percent of its capacity, rising."""
    given = {p for each in results["rounds"] for p in each.get(system, {}).get("open_loop", {})}
    return sorted(given, key=int)
