"""Transfer: accuracy of a linear classifier, as SentEval splits the tasks, to the digit."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from s2sent.training.errors import DataError
from s2sent.training.evaluation import transfer
from s2sent.training.evaluation.transfer import (
    FOLDS,
    SEED,
    STRENGTHS,
    TASKS,
    combine,
    read_labelled_texts,
    score_transfer,
)
from tests.support.tiny_data import write_table
from tests.support.tiny_tasks import tiny_tasks

REAL = Path(__file__).parents[4] / "shared" / "data" / "transfer"
HEADER = ("label", "text")


def letters(texts: Sequence[str]) -> NDArray[np.float32]:
    """An encoder: how often each of the letters a to z occurs."""
    rows = [[text.count(chr(letter)) for letter in range(97, 123)] for text in texts]
    return np.array(rows, np.float32)


def noise(texts: Sequence[str]) -> NDArray[np.float32]:
    """An encoder that knows nothing of what it reads."""
    return np.random.default_rng(0).normal(size=(len(texts), 4)).astype(np.float32)


def table_of(labels: Sequence[int]) -> list[tuple[str, ...]]:
    """A text for each label, told apart by the letter a to z of the label."""
    return [HEADER, *((str(y), f"{chr(97 + y)} row {n}") for n, y in enumerate(labels))]


@pytest.mark.usefixtures("few_folds")
def test_what_can_be_told_apart_scores_100_and_noise_about_its_share(tmp_path: Path) -> None:
    write_table(tmp_path / "mr.tsv", table_of([0, 1] * 100))
    assert score_transfer(letters, tmp_path, ["MR"]) == {"MR": 100}
    assert score_transfer(noise, tmp_path, ["MR"])["MR"] == pytest.approx(50, abs=12)


@pytest.mark.usefixtures("few_folds")
def test_every_task_has_a_score_and_the_same_one_again(tmp_path: Path) -> None:
    folder = tiny_tasks(tmp_path) / "transfer"
    scores = score_transfer(letters, folder)
    assert list(scores) == ["MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"]
    again = score_transfer(letters, folder, ["CR", "SST2", "MRPC"])
    assert again == {task: scores[task] for task in again}
    assert all(0 <= value <= 100 for value in scores.values())


def test_the_protocol_is_sentevals() -> None:
    assert (SEED, FOLDS, STRENGTHS) == (1111, 10, (1e-4, 1e-3, 1e-2, 1e-1))


@pytest.mark.usefixtures("few_folds")
def test_folds_and_strengths_are_those_of_a_nested_grid_search(tmp_path: Path) -> None:
    """scikit-learn's own search, folds within folds, gives the same accuracy."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    random = np.random.default_rng(1)
    y = np.array([0, 1] * 60)
    x = (random.normal(size=(120, 3)) + y[:, None] * 0.7).astype(np.float32)
    rows = [(str(label), str(row)) for row, label in enumerate(y)]
    write_table(tmp_path / "mr.tsv", [HEADER, *rows])

    folds = StratifiedKFold(transfer.FOLDS, shuffle=True, random_state=SEED)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    search = GridSearchCV(classifier, {"logisticregression__C": list(transfer.STRENGTHS)}, cv=folds)
    expected = 100 * cross_val_score(search, x, y, cv=folds).mean()

    found = score_transfer(lambda texts: x[[int(text) for text in texts]], tmp_path, ["MR"])
    assert found["MR"] == pytest.approx(expected, abs=1e-9)
    assert 55 < expected < 95  # neither empty nor trivial


def test_a_task_with_a_test_file_is_judged_by_it_alone(tmp_path: Path) -> None:
    """Labels turned round in the test file turn 100 into 0."""
    write_table(tmp_path / "trec-train.tsv", table_of([0, 1] * 20))
    write_table(tmp_path / "trec-test.tsv", table_of([0, 1, 1]))
    assert score_transfer(letters, tmp_path, ["TREC"]) == {"TREC": 100}
    turned = [(str(1 - int(label)), text) for label, text in table_of([0, 1, 1])[1:]]
    write_table(tmp_path / "trec-test.tsv", [HEADER, *turned])
    assert score_transfer(letters, tmp_path, ["TREC"]) == {"TREC": 0}


def test_the_dev_file_chooses_the_strength(tmp_path: Path) -> None:
    """Where only a weak penalty lets the one telling feature count, dev labels decide on it."""
    train = [0] * 90 + [1] * 12
    write_table(tmp_path / "sst2-train.tsv", table_of(train))
    write_table(tmp_path / "sst2-test.tsv", table_of([1, 1]))
    write_table(tmp_path / "sst2-dev.tsv", table_of([0, 0, 1]))
    assert score_transfer(letters, tmp_path, ["SST2"]) == {"SST2": 100}
    write_table(tmp_path / "sst2-dev.tsv", table_of([0, 0, 0]))  # any strength will do: the first
    assert score_transfer(letters, tmp_path, ["SST2"]) == {"SST2": 0}


@pytest.mark.usefixtures("few_folds")
def test_the_length_of_embeddings_does_not_matter(tmp_path: Path) -> None:
    folder = tiny_tasks(tmp_path) / "transfer"
    tasks = ["SST2", "MRPC"]
    longer = score_transfer(lambda texts: 1024 * letters(texts), folder, tasks)
    assert longer == score_transfer(letters, folder, tasks)


def test_a_pair_is_its_distance_and_its_product() -> None:
    first, second = np.array([[1, 2]], np.float32), np.array([[3, -1]], np.float32)
    np.testing.assert_array_equal(combine(first, second), [[2, 3, 3, -2]])
    np.testing.assert_array_equal(combine(first), first)


def test_every_text_is_embedded_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        asked.extend(texts)
        return letters(texts)

    score_transfer(encode, tiny_tasks(tmp_path) / "transfer", ["SST2", "MRPC"])
    assert len(asked) == len(set(asked))


@pytest.mark.usefixtures("few_folds")
def test_a_row_without_text_counts_where_sentevals_files_have_some(tmp_path: Path) -> None:
    rows = [*table_of([0, 1] * 12), ("1", "")]
    path = write_table(tmp_path / "cr.tsv", rows)
    assert read_labelled_texts(path, ["text"], may_lack_text=True).texts[0][-1] == "."
    write_table(tmp_path / "mr.tsv", rows)
    score_transfer(letters, tmp_path, ["CR"])
    with pytest.raises(DataError, match=re.escape("mr.tsv, line 26 has 0 characters in text")):
        score_transfer(letters, tmp_path, ["MR"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"label\ttext\nx\ta\n", "line 2 has the label 'x': write a whole number"),
        (b"label\ttext\n-1\ta\n", "line 2 has the label '-1'"),
        (b"label\ttext\n1\ta\tb\n", "line 2 has 3 cells where the header has 2"),
        (b"label\ttext\n1\ta\n0\t\xff\n", "line 3 is not UTF-8"),
        (b"label\ttext\n1\t" + 10_001 * b"a" + b"\n", "line 2 has 10001 characters in text"),
        (b"text\tlabel\n", "starts with ['text', 'label'], not with the header"),
        (b"label\ttext\n", "has no rows"),
        (b"", "has no rows"),
    ],
)
def test_a_bad_line_is_named_with_its_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mr.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(str(path))) as caught:
        score_transfer(letters, tmp_path, ["MR"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_too_few_rows_of_a_label_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mr\.tsv is not a file"):
        score_transfer(letters, tmp_path, ["MR"])
    write_table(tmp_path / "mr.tsv", table_of([0] * 30 + [1] * 11))
    with pytest.raises(DataError, match=r"mr\.tsv has labels 30 of 0, 11 of 1: give at least two"):
        score_transfer(letters, tmp_path, ["MR"])


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is not here")
def test_the_real_files_have_the_rows_of_senteval() -> None:
    """As many as SentEval reads, but for SST2's phrases."""
    rows = {}
    for task in TASKS.values():
        for file in (*task.train, task.dev, task.test):
            if file is not None:
                may = task.may_lack_text
                examples = read_labelled_texts(REAL / file, task.columns, may_lack_text=may)
                rows[file.removesuffix(".tsv")] = len(examples.labels)
    assert rows == {
        **{"mr": 10662, "cr": 3775, "subj": 10000, "mpqa": 10606},
        **{"sst2-train": 6920, "sst2-dev": 872, "sst2-test": 1821},
        **{"trec-train": 5452, "trec-test": 500},
        **{"mrpc-train": 3576, "mrpc-val": 500, "mrpc-test": 1725},
    }


def test_a_fit_that_float32_is_too_coarse_for_is_done_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[np.dtype[Any]] = []
    fit = LogisticRegression.fit

    def too_coarse(self: LogisticRegression, x: NDArray[Any], y: NDArray[Any]) -> Any:
        seen.append(x.dtype)
        if x.dtype == np.float32:
            warnings.warn("ABNORMAL", ConvergenceWarning, stacklevel=2)
        return fit(self, x, y)

    monkeypatch.setattr(LogisticRegression, "fit", too_coarse)
    x = np.array([[-2.0], [-1.0], [1.0], [2.0]], dtype=np.float32)
    y = np.array([0, 0, 1, 1])
    assert transfer._fit_and_judge(x, y, x, y, 1.0) == 100.0
    assert seen == [np.float32, np.float64]
