"""Scores transfer: a linear classifier on frozen embeddings, on SentEval's seven tasks.

Accuracy x 100 of logistic regression. MR, CR, SUBJ and MPQA: the mean over ten folds. SST2: trained
on its train set, strength of the penalty chosen on its dev set. TREC and MRPC: trained on their
train sets, strength chosen by folds within it. A pair (a, b) of MRPC is [|a - b|; a * b].

Differences from SentEval (arXiv 1803.05449, with ``usepytorch`` and ``nhid`` 0):

* the optimum of the penalised loss (scikit-learn's L-BFGS) instead of Adam stopped early;
* features are standardised on the training part, because the penalty would otherwise depend on the
  length of embeddings; C is one of `STRENGTHS` instead of l2 from 1e-5 to 1e-2;
* SST2's train set is its 6,920 sentences without their phrases.

The ten folds are stratified and shuffled by the seed, as SentEval's are. Its files of CR and MPQA
have a few rows without text; they count and are embedded as ".", as in SentEval's examples.
"""

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from s2sent.training.corpus import read_table
from s2sent.training.errors import DataError, EncoderError
from s2sent.training.evaluation.sts import Encode, distinct

SEED = 1111  # SentEval's
FOLDS = 10
LEAST_ROWS = 12  # of a label, so that every nested fold has one
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)  # C, the inverse of the penalty; the first of equals is taken
NO_TEXT = "."

Features = NDArray[np.float32]  # [n, F]
Labels = NDArray[np.int64]  # [n]
Fold = tuple[NDArray[np.int64], NDArray[np.int64]]  # rows to fit on, rows to judge by


@dataclass(frozen=True)
class Task:
    """The files of a task; without ``test`` accuracy is the mean over folds of ``train``."""

    train: tuple[str, ...]
    dev: str | None = None
    test: str | None = None
    columns: tuple[str, ...] = ("text",)
    may_lack_text: bool = False


TASKS = {
    "MR": Task(("mr.tsv",)),
    "CR": Task(("cr.tsv",), may_lack_text=True),
    "SUBJ": Task(("subj.tsv",)),
    "MPQA": Task(("mpqa.tsv",), may_lack_text=True),
    "SST2": Task(("sst2-train.tsv",), "sst2-dev.tsv", "sst2-test.tsv"),
    "TREC": Task(("trec-train.tsv",), test="trec-test.tsv"),
    "MRPC": Task(
        ("mrpc-train.tsv", "mrpc-val.tsv"),
        test="mrpc-test.tsv",
        columns=("sentence1", "sentence2"),
    ),
}


@dataclass(frozen=True)
class LabelledTexts:
    """Labelled rows: one column of texts, or two for pairs."""

    labels: Labels
    texts: list[list[str]]


def score_transfer(
    encode: Encode, folder: Path, tasks: Sequence[str] = tuple(TASKS), *, seed: int = SEED
) -> dict[str, float]:
    """Score an encoder on transfer tasks of ``folder``; task name to accuracy x 100.

    Every text is encoded once. ``seed`` decides the folds. Raises `DataError` naming the file and
    line that cannot be used, and `EncoderError` for embeddings that are not finite.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

    read = read_tasks(folder, tasks)
    columns = (c for parts in read.values() for part in parts.values() for c in part.texts)
    texts = distinct(*columns)
    embeddings = encode(texts)
    if not np.isfinite(embeddings).all():
        raise EncoderError(
            "Some embeddings are not finite, to which no classifier can be fitted: train or fetch "
            "the encoder again."
        )
    place = {text: row for row, text in enumerate(texts)}

    def features(examples: LabelledTexts) -> Features:
        return combine(*(embeddings[[place[t] for t in column]] for column in examples.texts))

    with threadpool_limits(1):  # sums in another order could move a score
        return {
            name: _accuracy(
                {part: (features(rows), rows.labels) for part, rows in parts.items()}, seed=seed
            )
            for name, parts in read.items()
        }


def read_tasks(
    folder: Path, tasks: Sequence[str] = tuple(TASKS)
) -> dict[str, dict[str, LabelledTexts]]:
    """The examples of transfer tasks of ``folder``, by task and part. Raises `DataError`."""
    return {name: _read_task(TASKS[name], folder) for name in tasks}


def combine(first: Features, second: Features | None = None) -> Features:
    """The features of a classifier: embeddings [n, D], or [n, 2 D] for pairs of them."""
    return first if second is None else np.hstack([abs(first - second), first * second])


def read_labelled_texts(
    path: Path, columns: Sequence[str], *, may_lack_text: bool = False
) -> LabelledTexts:
    """Read a tab-separated file of a label from 0 up and a text for each of ``columns``.

    Raises `DataError` naming the file, and the line where there is one, that cannot be used; with
    ``may_lack_text`` an empty text is read as `NO_TEXT`.
    """
    labels, rows = [], []
    table = read_table(path, ["label", *columns], may_lack_text=may_lack_text)
    for number, (label, *texts) in enumerate(table, start=2):
        if not (label.isascii() and label.isdigit()):
            raise DataError(
                f"{path}, line {number} has the label {label!r}: write a whole number from 0 up."
            )
        labels.append(int(label))
        rows.append([text or NO_TEXT for text in texts])
    if not rows:
        raise DataError(f"{path} has no rows: fetch it again.")
    return LabelledTexts(np.array(labels), [list(column) for column in zip(*rows, strict=True)])


def _read_task(task: Task, folder: Path) -> dict[str, LabelledTexts]:
    """The examples of "train" and, where the task has them, "dev" and "test"."""

    def read(file: str) -> LabelledTexts:
        return read_labelled_texts(folder / file, task.columns, may_lack_text=task.may_lack_text)

    files = [read(file) for file in task.train]
    train = LabelledTexts(
        np.concatenate([part.labels for part in files]),
        [sum(column, []) for column in zip(*(part.texts for part in files), strict=True)],
    )
    counts = np.unique_counts(train.labels)
    if len(counts.values) < 2 or min(counts.counts) < LEAST_ROWS:
        found = ", ".join(f"{n} of {label}" for label, n in zip(*counts, strict=True))
        raise DataError(
            f"{folder / task.train[0]} has labels {found}: give at least two, "
            f"each on at least {LEAST_ROWS} rows."
        )
    others = {"dev": task.dev, "test": task.test}
    return {"train": train} | {part: read(file) for part, file in others.items() if file}


def _accuracy(parts: dict[str, tuple[Features, Labels]], *, seed: int) -> float:
    """Accuracy x 100 of a task, by folds, dev set or test set as it has them."""
    x, y = parts["train"]
    if "test" not in parts:
        return statistics.fmean(
            _nested(x[fit], y[fit], x[judge], y[judge], seed) for fit, judge in _folds(x, y, seed)
        )
    if "dev" not in parts:
        return _nested(x, y, *parts["test"], seed)
    strength = _choose([(x, y, *parts["dev"])])
    return _fit_and_judge(x, y, *parts["test"], strength)


def _nested(x: Features, y: Labels, x_test: Features, y_test: Labels, seed: int) -> float:
    """Accuracy on the test rows, with the strength chosen by folds within the others."""
    splits = [(x[a], y[a], x[b], y[b]) for a, b in _folds(x, y, seed)]
    return _fit_and_judge(x, y, x_test, y_test, _choose(splits))


def _folds(x: Features, y: Labels, seed: int) -> list[Fold]:
    from sklearn.model_selection import StratifiedKFold

    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x, y))


def _choose(splits: Sequence[tuple[Features, Labels, Features, Labels]]) -> float:
    """The strength with the best mean accuracy over the splits."""
    means = {
        strength: statistics.fmean(_fit_and_judge(*split, strength) for split in splits)
        for strength in STRENGTHS
    }
    return max(means, key=means.__getitem__)


def _fit_and_judge(
    x: Features, y: Labels, x_test: Features, y_test: Labels, strength: float
) -> float:
    """Accuracy x 100 on the test rows of the classifier fitted to the others.

    In float32 the optimiser may not converge on few rows, depending on the processor; the fit is
    then repeated in float64.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classifier: Any = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            classifier.fit(x, y)
    except ConvergenceWarning:
        classifier.fit(x.astype(np.float64), y)
    return 100 * float(classifier.score(x_test, y_test))
