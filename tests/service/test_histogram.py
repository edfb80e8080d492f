"""Observations wait to be counted, and none is lost or counted elsewhere than by the library."""

import math
import threading

import numpy as np
import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from service.histogram import MAX_WAITING, Histogram

BOUNDS = (0.0, 0.1, 0.5, 2.0)


def of_the_library(values: list[float]) -> bytes:
    registry = CollectorRegistry()
    histogram = prometheus_client.Histogram(
        "s2sent_test", "A test.", ["route"], buckets=BOUNDS, registry=registry
    )
    for value in values:
        histogram.labels("/embed").observe(value)
    return generate_latest(registry)


@pytest.mark.parametrize(
    "values",
    [
        [0.25],
        [-1.0, 0.0, 0.1, 0.5, 2.0, 2.0000001, 1e9],  # on a bound is within it
        [math.inf],
        np.random.default_rng(1).uniform(-0.5, 3, 2 * MAX_WAITING + 3).tolist(),
    ],
)
def test_a_scrape_reads_as_one_of_the_librarys_histogram(values: list[float]) -> None:
    registry = CollectorRegistry()
    histogram = Histogram(
        "s2sent_test", "A test.", BOUNDS, registry, label="route", values=["/embed"]
    )
    for value in values:
        histogram.labels("/embed").observe(value)
    ours = generate_latest(registry).decode().splitlines()
    theirs = of_the_library(values).decode().splitlines()
    expected = [line for line in theirs if "_created" not in line]  # the service has it off
    assert len(ours) == len(expected)
    for our_line, line in zip(ours, expected, strict=True):
        if "_sum" in line:  # added up in another order
            assert math.isclose(float(our_line.split()[-1]), float(line.split()[-1]), abs_tol=1e-9)
        else:
            assert our_line == line


def test_a_series_is_there_before_its_first_observation() -> None:
    registry = CollectorRegistry()
    Histogram("s2sent_test", "A test.", BOUNDS, registry)
    assert registry.get_sample_value("s2sent_test_count") == 0
    assert registry.get_sample_value("s2sent_test_bucket", {"le": "+Inf"}) == 0


def test_an_unknown_label_makes_no_series() -> None:
    histogram = Histogram(
        "s2sent_test", "A test.", BOUNDS, CollectorRegistry(), label="route", values=["/embed"]
    )
    with pytest.raises(KeyError):
        histogram.labels("/random/path")


def test_no_observation_is_lost_between_threads_and_scrapes() -> None:
    series = Histogram("s2sent_test", "A test.", BOUNDS, CollectorRegistry()).labels()
    each, done = 5 * MAX_WAITING, threading.Event()

    def observe() -> None:
        for _ in range(each):
            series.observe(0.25)

    def scrape() -> None:
        while not done.is_set():
            series.totals()

    observers = [threading.Thread(target=observe) for _ in range(4)]
    scraper = threading.Thread(target=scrape)
    for thread in (*observers, scraper):
        thread.start()
    for thread in observers:
        thread.join()
    done.set()
    scraper.join()
    assert series.totals() == ([0, 0, 4 * each, 4 * each, 4 * each], each)


def test_what_nobody_scrapes_does_not_grow() -> None:
    series = Histogram("s2sent_test", "A test.", BOUNDS, CollectorRegistry()).labels()
    for _ in range(3 * MAX_WAITING + 1):
        series.observe(1.0)
    assert len(series._waiting) == 1
