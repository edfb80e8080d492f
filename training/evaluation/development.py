"""Scores on development data: STS-B dev, with and without its overlap with STS12-16, and retrieval.

Recipes are chosen by these scores alone. Many pairs of STS-B dev also stand in STS12 to 16, which
are test tasks: a recipe that is chosen on all of dev is partly chosen on its test. The overlap is
computed from the files: two pairs are the same if their sentences have the same words and digits
in the same order, after NFKC normalisation and case folding, in either order of the two sentences.
"""

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from s2sent.training.evaluation.retrieval import score_retrieval
from s2sent.training.evaluation.sts import (
    DEV_FILE,
    TASKS,
    Encode,
    SentencePairs,
    read_sentence_pairs,
    spearman,
)

OVERLAPPING = ("STS12", "STS13", "STS14", "STS15", "STS16")
ALL_PAIRS = "STS-B dev"
WITHOUT_OVERLAP = "STS-B dev without STS12-16"

Key = frozenset[str]


@dataclass(frozen=True)
class DevelopmentPairs:
    """STS-B dev: all of it, what is left without the overlap, and how much was left out.

    ``distinct`` and ``overlapping`` count different pairs, each once.
    """

    all: SentencePairs
    without_overlap: SentencePairs
    distinct: int
    overlapping: int


def read_development_pairs(folder: Path) -> DevelopmentPairs:
    """Read STS-B dev of ``folder`` and remove the pairs that its files of STS12 to 16 hold.

    Only the sentences of those files are used, not their scores. Raises `DataError` for a file that
    is missing or cannot be used.
    """
    dev = read_sentence_pairs(folder / DEV_FILE)
    held: set[Key] = set()
    for task in OVERLAPPING:
        held |= set(_keys(read_sentence_pairs(folder / TASKS[task])))
    keys = _keys(dev)
    kept = [row for row, key in enumerate(keys) if key not in held]
    without = SentencePairs(
        [dev.first[row] for row in kept],
        [dev.second[row] for row in kept],
        [dev.gold[row] for row in kept],
    )
    return DevelopmentPairs(dev, without, len(set(keys)), len(set(keys) & held))


def normalised(text: str) -> str:
    """The words and digits of a text, NFKC-normalised and case-folded, joined by single spaces."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def score_development(
    encode: Encode, folder: Path, retrieval: Path | None = None
) -> dict[str, float]:
    """Spearman x 100 on STS-B dev of ``folder``, all pairs and without the overlap.

    With ``retrieval``, a file of queries and documents, also its recall@1 and MRR@10 x 100. Raises
    `DataError` for a file that cannot be used.
    """
    pairs = read_development_pairs(folder)
    scores = {
        name: spearman(encode(of.first), encode(of.second), of.gold)
        for name, of in ((ALL_PAIRS, pairs.all), (WITHOUT_OVERLAP, pairs.without_overlap))
    }
    return scores | (score_retrieval(encode, retrieval) if retrieval else {})


def _keys(pairs: SentencePairs) -> list[Key]:
    return [
        frozenset((normalised(first), normalised(second)))
        for first, second in zip(pairs.first, pairs.second, strict=True)
    ]
