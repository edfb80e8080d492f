"""What is sent: long texts joined from short ones, bodies in order, and the figures of a load."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.load.closed_loop import per_text, summarise_ms, write_bodies
from benchmarks.load.texts import join_long_texts, read_texts
from benchmarks.systems.system import Route
from benchmarks.systems.worker import measure

ROUTE = Route("/embed", "/ready", lambda texts: {"inputs": texts}, lambda rows: list(rows))


def count_words(texts: Sequence[str]) -> list[int]:
    """Tokens as a tokenizer counts them: a word each, and two special ones."""
    return [len(text.split()) + 2 for text in texts]


def test_long_texts_have_128_to_256_tokens_and_only_whole_texts() -> None:
    texts = [" ".join(["word"] * length) for length in (1, 7, 30, 128, 200)]
    long = join_long_texts(texts, count_words, num_texts=50)
    assert all(128 <= length <= 256 for length in count_words(long))
    assert len(set(count_words(long))) > 10
    assert long == join_long_texts(texts, count_words, num_texts=50)


def test_each_text_of_a_file_is_sent_once(tmp_path: Path) -> None:
    """The service runs equal texts of a batch once, which its peers do not."""
    (tmp_path / "texts").write_text("a\n\nb\na\n")
    assert sorted(read_texts(tmp_path / "texts")) == ["a", "b"]


def test_texts_that_are_all_too_long_to_join_are_refused() -> None:
    with pytest.raises(ValueError, match="128 tokens or fewer"):
        join_long_texts(["word " * 200], count_words)


def test_bodies_go_through_the_texts_in_their_order(tmp_path: Path) -> None:
    path = write_bodies(ROUTE, ["a", "b", "c"], 2, tmp_path / "bodies")
    bodies = [json.loads(line)["inputs"] for line in path.read_text().splitlines()]
    assert bodies[:3] == [["a", "b"], ["c", "a"], ["b", "c"]]
    assert len(bodies) == 256


def test_percentiles_are_milliseconds() -> None:
    figures = summarise_ms([number / 1000 for number in range(1001)])
    assert figures == pytest.approx({"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p99.9_ms": 999})
    assert summarise_ms([0.25])["p99_ms"] == 250
    assert summarise_ms([]) == {}


def test_a_thousand_texts_cost_what_they_took() -> None:
    assert per_text(500, 2, 3) == {"texts_per_second": 250, "cpu_seconds_per_1000_texts": 6}


def test_a_worker_calls_until_the_time_is_over_and_at_least_once() -> None:
    calls: list[list[str]] = []
    task = {"texts": ["a", "b", "c"], "texts_per_call": 2, "seconds": 0}
    answer = measure(lambda texts: calls.append(list(texts)), task)
    assert calls == [["a", "b"]]
    assert (answer["texts"], len(answer["call_seconds"])) == (2, 1)
