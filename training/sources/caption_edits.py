"""Makes pairs of sentences that differ by an edit, from captions of pictures.

SICK is made in a like way (Marelli et al., LREC 2014, section 2). Pairs that are near a sentence of
an STS task are left out.
"""

import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import TypeVar

from s2sent.training.corpus import SOURCES, Lines, read_table
from s2sent.training.errors import DataError
from s2sent.training.evaluation.sts import read_sentence_pairs
from s2sent.training.files.sentences import Pair
from s2sent.training.sources.edits import edit

log = logging.getLogger(__name__)

Row = TypeVar("Row", bound=tuple[str, ...])

WORDS = range(4, 17)  # of a caption that is edited
HELD_OUT = 3_000  # pictures that give no pairs, so that a student can be compared with its teacher
CANDIDATES, MOST_PAIRS = 18_000, 12_000  # before and after those near an STS task are left out
NEAR = 0.8  # of the words of two sentences together, as many are in both


def read_caption_edits(data: Path) -> list[Pair]:
    """The pairs made from the captions of a data folder; the same captions give the same pairs.

    Raises `DataError` when the captions or a task are missing or give no pair.
    """
    used, _ = split_pictures(data / "corpus")
    pairs = make_pairs(used, seed=3)
    Random(1).shuffle(pairs)  # noqa: S311  a reproducible order, not a secret
    kept = far_from_tasks(pairs[:CANDIDATES], data)
    if not kept:
        raise DataError(f"{data} has no captions that can be edited: fetch corpus/ again.")
    return kept[:MOST_PAIRS]


def far_from_tasks(rows: Iterable[Row], data: Path) -> list[Row]:
    """The rows without a sentence that shares `NEAR` of its words with one of an STS task.

    Raises `DataError` where ``data/sts`` has no tasks.
    """
    tasks = Sentences(_task_sentences(data / "sts"))
    return [row for row in rows if not any(map(tasks.have_near, row))]


def split_pictures(folder: Path) -> tuple[list[list[str]], list[list[str]]]:
    """The captions of each picture, without final stops: of those used, and of those held out."""
    source, lines = SOURCES["captions"], Lines("cut")
    pictures = [
        [caption.rstrip(" .") for caption in row]
        for row in read_table(folder / source.file, source.columns, lines=lines)
    ]
    if changed := str(lines):
        log.warning("%s: %s", source.file, changed)
    Random(7).shuffle(pictures)  # noqa: S311  as above
    return pictures[:-HELD_OUT], pictures[-HELD_OUT:]


def make_pairs(pictures: Iterable[list[str]], *, seed: int) -> list[Pair]:
    """At most one pair of each picture, in the order of the pictures.

    Of a hundred pictures 45 are tried for a caption with an edit of it, 30 for two edits of one
    caption, and 25 for a caption with an edit of another one.
    """
    draw = Random(seed)  # noqa: S311  as above
    pairs: dict[Pair, None] = {}
    for captions in pictures:
        short = [caption for caption in captions if len(caption.split()) in WORDS]
        pair = _pair(short, draw) if short else None
        if pair is not None and pair[0] != pair[1]:
            pairs[pair if draw.random() >= 0.5 else (pair[1], pair[0])] = None
    return list(pairs)


def _pair(captions: list[str], draw: Random) -> Pair | None:
    caption, kind = draw.choice(captions), draw.random()
    first: str | None = caption
    if kind < 0.45:
        second = edit(caption, draw)
    elif kind < 0.75:
        first, second = edit(caption, draw), edit(caption, draw)
    else:
        other = draw.choice(captions)
        second = edit(other, draw) if other != caption else None
    return None if first is None or second is None else (first, second)


class Sentences:
    """Sentences that are looked up by the words they share with another one."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self._with_word: dict[str, list[frozenset[str]]] = defaultdict(list)
        for words in {_words(sentence) for sentence in sentences}:
            for word in words:
                self._with_word[word].append(words)
        self._known: dict[str, bool] = {}

    def have_near(self, sentence: str) -> bool:
        """Whether one shares at least `NEAR` of both sentences' different words (Jaccard index)."""
        if sentence not in self._known:
            words = _words(sentence)
            # Near ones share NEAR of these words, so one of the rarest that are then left over.
            rarest = sorted(words, key=lambda word: (len(self._with_word.get(word, ())), word))
            looked_up = rarest[: len(words) - math.ceil(NEAR * len(words)) + 1]
            self._known[sentence] = any(
                len(words & other) >= NEAR * len(words | other)
                for word in looked_up
                for other in self._with_word.get(word, ())
            )
        return self._known[sentence]


def _task_sentences(folder: Path) -> Iterator[str]:
    paths = sorted(folder.glob("*.tsv"))
    if not paths:
        raise DataError(f"{folder} has no STS tasks: name the folder that holds corpus/ and sts/.")
    for path in paths:
        pairs = read_sentence_pairs(path)
        yield from pairs.first
        yield from pairs.second


def _words(sentence: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", sentence.lower()))
