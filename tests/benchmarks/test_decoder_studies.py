"""The studies of decoders: two sides in turns, one forward beside two."""

import itertools
from argparse import Namespace
from pathlib import Path

import numpy as np

from benchmarks.studies import decoder_serving, one_forward
from tests.support.tiny import tiny_decoder
from tests.support.tiny_data import tiny_data


def test_two_sides_take_turns_on_the_same_texts() -> None:
    """The even rounds begin with the service; a row has medians, and the ratio within rounds."""
    asked: list[tuple[str, list[str]]] = []

    def side(name: str) -> decoder_serving.Embed:
        def embed(batch: list[str]) -> np.ndarray:
            asked.append((name, batch))
            return np.zeros((len(batch), 2), np.float32)

        return embed

    texts = [*"abcdefg"]
    rounds = [
        decoder_serving.in_turns(side("ours"), side("torch"), texts, 2, 0.0, first=number)
        for number in range(2)
    ]
    at = decoder_serving.STEP % len(texts)
    later = [texts[at], texts[(at + 1) % len(texts)]]
    assert asked == [("ours", ["a", "b"]), ("torch", ["a", "b"]), ("torch", later), ("ours", later)]
    assert all(window.texts_per_second > 0 for window in itertools.chain(*rounds))
    window = decoder_serving.Window
    made = decoder_serving.row(8, [(window(30.0, 9.0), window(10.0, 20.0))] * 3)
    assert made == "| 8 | 30.0 | 10.0 | 3.00 [3.00 to 3.00] | 9.0 | 20.0 |"


def test_one_forward_is_compared_with_two_by_medians() -> None:
    runs = {"tokens": 30.0, "seconds": 3.0, "peak_mb": 900.0}
    more = {"tokens": 50.0, "seconds": 4.0, "peak_mb": 1000.0}
    made = one_forward.table({"one": [runs, runs], "two": [more, {**more, "seconds": 8.0}]})
    assert "| one | 30.0 | 3.00 | 900 |" in made
    assert made.endswith("| less, % | | 50 | 10 |")


def test_two_forwards_read_each_text_twice(tmp_path: Path) -> None:
    """One step of each kind on a tiny decoder; the tokens are those of a row of the batch."""
    options = Namespace(
        backbone=str(tiny_decoder(tmp_path / "tiny")),
        data=tiny_data(tmp_path / "data"),
        batch_size=4,
        steps=1,
    )
    one, two = (one_forward.measure(kind, options) for kind in one_forward.KINDS)
    assert one["tokens"] < two["tokens"] < 2 * one["tokens"]
    assert min(one["seconds"], two["seconds"]) > 0
