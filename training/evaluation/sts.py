"""Scores semantic textual similarity: Spearman's correlation of cosines and gold scores.

SentEval's tasks in the setting that SimCSE (arXiv 2104.08821, appendix B) calls "all": the
subsets of a year are concatenated and ranked once. Texts are their whitespace-separated tokens
joined by single spaces; only the encoder's own limit truncates them.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from s2sent.training.corpus import read_table
from s2sent.training.errors import DataError, EncoderError

TASKS = {
    "STS12": "sts12.tsv",
    "STS13": "sts13.tsv",
    "STS14": "sts14.tsv",
    "STS15": "sts15.tsv",
    "STS16": "sts16.tsv",
    "STS-B": "stsb-test.tsv",
    "SICK-R": "sickr-test.tsv",
}
DEV_FILE = "stsb-dev.tsv"  # used to choose checkpoints only
AVERAGE = "average"  # of the tasks, beside their names
COLUMNS = ("subset", "score", "sentence1", "sentence2")


class Encode(Protocol):
    """Texts to embeddings [n, dim], of any norm; row i is for text i."""

    def __call__(self, texts: Sequence[str], /) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class PromptedEncode:
    """An encoder that puts other prompts before queries and documents than before other texts."""

    encode: Encode
    query: Encode
    document: Encode

    def __call__(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        """Embeddings [n, dim] of texts that are neither queries nor documents."""
        return self.encode(texts)


def roles(encode: Encode) -> tuple[Encode, Encode]:
    """The encoder of queries and that of documents: the encoder itself where it knows no others."""
    return getattr(encode, "query", encode), getattr(encode, "document", encode)


def each_role(encode: Encode, change: Callable[[Encode], Encode]) -> Encode:
    """The encoder changed in the same way for texts, queries and documents."""
    return PromptedEncode(change(encode), *map(change, roles(encode)))


@dataclass(frozen=True)
class SentencePairs:
    """One similarity task: two lists of sentences and the gold score of each pair."""

    first: list[str]
    second: list[str]
    gold: list[float]


class CachedEncode:
    """An encoder that embeds each text once."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._known: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        """Embeddings [n, dim] of n >= 1 texts; those not seen before are embedded in one call."""
        if new := distinct(text for text in texts if text not in self._known):
            self._known.update(zip(new, self._encode(new), strict=True))
        return np.stack([self._known[text] for text in texts])

    @cached_property
    def query(self) -> "CachedEncode":
        """The encoder of queries, with a cache of its own."""
        return CachedEncode(roles(self._encode)[0])

    @cached_property
    def document(self) -> "CachedEncode":
        """The encoder of documents, likewise."""
        return CachedEncode(roles(self._encode)[1])


def distinct(*columns: Iterable[str]) -> list[str]:
    """Every text once, in the order of its first appearance."""
    return list(dict.fromkeys(text for column in columns for text in column))


def read_sentence_pairs(path: Path) -> SentencePairs:
    """Read a task's file. Raises `DataError` naming the file and line that cannot be used."""
    rows = list(read_table(path, COLUMNS))
    gold = []
    for number, row in enumerate(rows, start=2):
        try:
            gold.append(float(row[1]))
        except ValueError:
            gold.append(math.nan)
        if not math.isfinite(gold[-1]):
            raise DataError(f"{path}, line {number} has the score {row[1]}: write a number.")
    if not gold:
        raise DataError(f"{path} has no rows under its header: add pairs.")
    return SentencePairs([row[2] for row in rows], [row[3] for row in rows], gold)


def thinned(pairs: SentencePairs, count: int) -> SentencePairs:
    """At most ``count`` of the pairs, at equal steps; 0 takes all."""
    size = len(pairs.gold)
    rows = [place * size // count for place in range(count)] if 0 < count < size else range(size)
    return SentencePairs(
        [pairs.first[row] for row in rows],
        [pairs.second[row] for row in rows],
        [pairs.gold[row] for row in rows],
    )


def spearman(
    first: NDArray[np.floating], second: NDArray[np.floating], gold: Sequence[float]
) -> float:
    """Spearman's rank correlation x 100 between row cosines of two [n, dim] and gold scores [n].

    Raises `DataError` for gold scores, and `EncoderError` for embeddings, that have none.
    """
    cosine = cosines(first, second)
    if len({*gold}) < 2:
        raise DataError(
            f"All {len(gold)} pairs have one gold score, and a correlation needs two: add pairs."
        )
    if (cosine == cosine[0]).all():
        raise EncoderError(
            f"All {len(gold)} pairs have the cosine {cosine[0]:.4f}, and a correlation needs two: "
            "the encoder gives every text one direction; train or fetch it again."
        )
    return 100 * float(spearmanr(cosine, gold).statistic)


def cosines(first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.float64]:
    """The cosine [n] of each row of ``first`` [n, dim] with the same row of ``second``.

    Raises `EncoderError` for a row that has none.
    """
    a, b = (matrix.astype(np.float64) for matrix in (first, second))
    require_directions(a, b)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine: NDArray[np.float64] = np.einsum("nd,nd->n", a, b) / norms
    return cosine


def require_directions(*matrices: NDArray[np.floating]) -> None:
    """Raise `EncoderError` where a row of the embeddings [n, dim] is zeros or not finite."""
    for rows in matrices:
        lost = ~np.isfinite(rows).all(1) | ~rows.any(1)
        if lost.any():
            raise EncoderError(
                f"{lost.sum()} of {len(rows)} embeddings, first that of text {lost.argmax() + 1}, "
                "are zeros or not finite and have no cosine: leave out texts that the encoder has "
                "no vector for, or train or fetch it again."
            )


def read_tasks(folder: Path, tasks: Sequence[str] = tuple(TASKS)) -> dict[str, SentencePairs]:
    """The pairs of similarity tasks of ``folder``, by task. Raises `DataError`."""
    return {task: read_sentence_pairs(folder / TASKS[task]) for task in tasks}


def score(encode: Encode, folder: Path, tasks: Sequence[str] = tuple(TASKS)) -> dict[str, float]:
    """Score an encoder on similarity tasks of ``folder``; task name to Spearman x 100."""
    read = read_tasks(folder, tasks)
    texts = distinct(*(pairs.first + pairs.second for pairs in read.values()))
    embeddings = encode(texts)
    row = {text: index for index, text in enumerate(texts)}

    def rows(sentences: list[str]) -> NDArray[np.float32]:
        return embeddings[[row[sentence] for sentence in sentences]]

    return {
        task: spearman(rows(pairs.first), rows(pairs.second), pairs.gold)
        for task, pairs in read.items()
    }


def average(scores: Mapping[str, float]) -> float:
    """The mean of the unrounded scores of the tasks."""
    return statistics.fmean(scores.values())


def with_average(scores: Mapping[str, float]) -> dict[str, float]:
    """The scores and, last, their mean."""
    return {**scores, AVERAGE: average(scores)}
