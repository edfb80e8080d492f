"""From raw numbers to figures: medians over rounds, and ratios taken within a round.

``results.json`` holds one mapping per round, {system: figures}. A figure that was not measured is
not there, and everything made of it is None.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

Round = dict[str, Any]  # by system
Results = dict[str, Any]
Number = float | None

OURS, RAW = "s2sent", "raw"
INFINITY = ("infinity-torch", "infinity-optimum")


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


def throughput(system: str, load: str) -> Callable[[Round], Number]:
    """Texts a second of one system under one load."""
    return lambda each: look_up(each, system, "loads", load, "texts_per_second")


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


def of_raw(each: Round, load: str, system: str = OURS, raw: str = RAW) -> Number:
    """Our throughput over that of the raw limit on the same artifact and kind of text."""
    beside = "long" if load == "long" else "batches"
    return ratio(throughput(system, load)(each), throughput(raw, beside)(each))


def measured(results: Results) -> list[str]:
    """The systems with any figure, in their order."""
    return [name for name in results["systems"] if any(name in each for each in results["rounds"])]


def open_loop_percents(results: Results, system: str) -> list[str]:
    """The open-loop loads a system was given, in percent of its capacity, rising."""
    given = {p for each in results["rounds"] for p in each.get(system, {}).get("open_loop", {})}
    return sorted(given, key=int)
