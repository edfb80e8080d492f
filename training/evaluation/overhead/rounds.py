"""The rounds of a measurement: their settings, the times of their arms, and their sums."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Literal

from s2sent.training.errors import ConfigError

PRECISIONS = ("fp32", "bf16")  # of torch
Arms = Mapping[str, Callable[[], object]]
Seconds = Mapping[str, Sequence[tuple[float, float]]]  # of each arm: (by the clock, of processor)


@dataclass(frozen=True)
class Protocol:
    """The settings of a measurement; the defaults are the full protocol."""

    batch_sizes: tuple[int, ...] = (1, 32, 128)
    lengths: tuple[int, ...] = (32, 128)
    precisions: tuple[str, ...] = ("fp32", "bf16")
    warm_ups: int = 20  # rounds before those that count
    repeats: int = 200  # rounds that count
    seconds_per_cell: float = 0.0  # limit of a cell's time, whatever its rounds; 0 sets none
    threads: int = 0  # of torch or ONNX Runtime on the CPU; 0 leaves it to them
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.precisions) - set(PRECISIONS)):
            raise ConfigError(
                f"{', '.join(unknown)} is no precision: choose from {', '.join(PRECISIONS)}."
            )
        for name in ("batch_sizes", "lengths", "precisions"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty, which measures nothing: give one at least.")
        counts = {"batch_sizes": self.batch_sizes, "lengths": self.lengths}
        for name, numbers in {**counts, "repeats": (self.repeats,)}.items():
            if min(numbers) < 1:
                raise ConfigError(f"{name} has {min(numbers)}, below 1: it must be at least 1.")
        for name in ("warm_ups", "seconds_per_cell", "threads"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be at least 0.")


def take_turns(arms: Arms, protocol: Protocol) -> Seconds:
    """Run all arms in rounds and return the seconds of each, without the warm-ups."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for order in itertools.islice(orders(tuple(arms)), protocol.warm_ups):
        for name in order:
            arms[name]()
    started = time.monotonic()
    for order in itertools.islice(orders(tuple(arms)), protocol.repeats):
        for name in order:
            seconds[name].append(_timed(arms[name]))
        if 0 < protocol.seconds_per_cell < time.monotonic() - started:
            break
    return seconds


def orders(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Orders in which every name has every position, and precedes every other, equally often."""
    for turn in itertools.count():
        shift = turn // 2 % len(names)
        order = names[shift:] + names[:shift]
        yield order[::-1] if turn % 2 else order


def _timed(arm: Callable[[], object]) -> tuple[float, float]:
    clock, processor = time.perf_counter(), time.process_time()
    arm()
    return time.perf_counter() - clock, time.process_time() - processor


def cell(batch: int, length: int, seconds: Seconds) -> dict[str, Any]:
    """The numbers of a cell: ``selector`` over ``plain`` and, with four arms, its parts, all in
    percent of ``plain``."""
    found: dict[str, Any] = {
        "batch_size": batch,
        "length": length,
        "rounds": len(seconds["plain"]),
        "median_ms": {
            name: 1000 * median(clock for clock, _ in of) for name, of in seconds.items()
        },
        "selector": _added(seconds, "selector", "plain"),
    }
    if "states" in seconds:
        found["hidden_states"] = _added(seconds, "states", "plain")
        found["selector_alone"] = _added(seconds, "selector", "states")
        found["selector_by_token"] = _added(seconds, "tokens", "plain")
    return found


def _added(seconds: Seconds, arm: str, base: str) -> dict[str, float | None]:
    """The time of ``arm`` minus that of ``base`` in percent of ``plain``: wall time, with quartiles
    over rounds, and processor time."""
    rounds = list(zip(seconds[arm], seconds[base], seconds["plain"], strict=True))
    clock = [100 * (a[0] - b[0]) / plain[0] for a, b, plain in rounds]
    processor = [100 * (a[1] - b[1]) / plain[1] for a, b, plain in rounds if plain[1] > 0]
    lower, middle, upper = quantiles(clock, n=4) if len(clock) > 1 else clock * 3
    return {
        "median_percent": middle,
        "lower_quartile_percent": lower,
        "upper_quartile_percent": upper,
        "processor_median_percent": median(processor) if processor else None,
    }


def one_line(found: Mapping[str, Any]) -> str:
    """A cell as a line of the log."""
    parts = [f"{found['precision']} {found['batch_size']} x {found['length']}"]
    for name in ("selector", "hidden_states", "selector_alone", "selector_by_token"):
        if name in found:
            value = found[name]
            quartiles = (
                f"{value['lower_quartile_percent']:+.2f} to {value['upper_quartile_percent']:+.2f}"
            )
            parts.append(f"{name.replace('_', ' ')} {value['median_percent']:+.2f} % ({quartiles})")
    return ", ".join([*parts, f"{found['rounds']} rounds"])
