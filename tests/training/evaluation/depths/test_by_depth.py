"""An artifact is scored and timed at each depth and width, which its manifest records; a checkpoint
with exits is scored on development data."""

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.training.__main__ import main
from s2sent.training.evaluation.depths import by_depth
from s2sent.training.evaluation.depths.by_depth import by_depth_table, describe, score_grid
from s2sent.training.evaluation.depths.encoders import artifact_depths, checkpoint_depths
from s2sent.training.evaluation.development import WITHOUT_OVERLAP, read_development_pairs
from s2sent.training.evaluation.encoders import load_checkpoint
from s2sent.training.evaluation.results.use_of_tests import TEST_USE_FILE, log_test_use
from s2sent.training.evaluation.sts import DEV_FILE, average, score, spearman
from s2sent.training.files.record import write_record
from tests.support.tiny_data import SENTENCES, write_table
from tests.support.tiny_tasks import STS_HEADER, tiny_tasks

Rows = NDArray[np.float32]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seven tests, and development pairs that are in none of them."""
    folder = tiny_tasks(tmp_path_factory.mktemp("tasks"))
    pairs = zip(SENTENCES, SENTENCES[11:], strict=False)
    rows = [("tiny", str(number % 5), *pair) for number, pair in enumerate(pairs)]
    write_table(folder / "sts" / DEV_FILE, [STS_HEADER, *rows])
    return folder


@pytest.fixture
def artifact(exits_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy whose manifest may change; it can stop at 2, 3 and 4 of 6 and is 32 wide."""
    monkeypatch.setattr(by_depth, "DIMENSIONS", (8, 64))
    return Path(shutil.copytree(exits_artifact.path, tmp_path / "artifact"))


def run(*arguments: object) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([str(argument) for argument in arguments])


def test_what_is_recorded_is_what_the_artifact_scores(
    artifact: Path, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("depths", artifact, "--data", tasks, "--record")
    printed = capsys.readouterr().out
    recorded = Artifact.open(artifact).manifest
    assert [*recorded.by_depth] == ["2", "3", "4", "6"]
    assert recorded.by_depth["6"]["time"] == 1
    assert all(of["time"] > 0 for of in recorded.by_depth.values())
    assert len(recorded.training["tests_opened"]) == 1
    encoder = OnnxEncoder(Artifact.open(artifact))
    for depth, width in ((2, 8), (4, 32), (6, 8)):
        at = None if depth == 6 else depth

        def encode(texts: Sequence[str], at: int | None = at, width: int = width) -> Rows:
            return encoder.encode(texts, depth=at)[:, :width]

        scores = score(encode, tasks / "sts")
        found = recorded.by_depth[str(depth)]["scores"]
        assert [*found] == ["8", "32"]
        assert found[str(width)] == pytest.approx(average(scores), abs=0.006)
    assert printed == f"{by_depth_table(recorded.by_depth)}\n"
    run("depths", artifact, "--data", tasks, "--only-table")
    assert capsys.readouterr().out == printed


def test_development_scores_open_no_test_and_change_no_manifest(
    artifact: Path, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (artifact / "manifest.json").read_bytes()
    run("depths", artifact, "--data", tasks, "--dev-only")
    printed = capsys.readouterr().out
    assert (artifact / "manifest.json").read_bytes() == before
    titles = re.findall(r"^STS-B dev.*", printed, re.MULTILINE)
    assert titles == ["STS-B dev", "STS-B dev without STS12-16"]
    assert re.findall(r"^\| (\d) \|", printed, re.MULTILINE) == ["2", "3", "4", "6"] * 2


@pytest.mark.parametrize("option", ["--dev-only", "--pairs"])
def test_a_checkpoint_scores_on_development_data_what_its_artifact_does(
    artifact: Path,
    exits_checkpoint: Path,
    tasks: Path,
    option: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = []
    for path in (artifact, exits_checkpoint):
        run("depths", path, "--data", tasks, option)
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert len(re.findall(r"^\| (\d) \|", printed[0], re.MULTILINE)) >= 4


def test_a_checkpoint_runs_once_for_all_depths(
    exits_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_checkpoint(exits_checkpoint)
    encoders = checkpoint_depths(encoder, exits_checkpoint)
    assert ([*encoders.at], encoders.width) == ([2, 3, 4, 6], 32)
    texts = SENTENCES[:5]
    rows = {depth: encode(texts) for depth, encode in encoders.at.items()}
    monkeypatch.setattr(encoder, "forward", lambda *_: pytest.fail("a text is run again"))
    for depth, encode in encoders.at.items():
        assert np.array_equal(encode(texts), rows[depth])
    assert not np.allclose(rows[2], rows[6])


@pytest.mark.parametrize("option", ["--dev-only", "--pairs"])
def test_a_checkpoint_without_exits_is_refused(
    tiny_checkpoint: Path, tasks: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["depths", str(tiny_checkpoint), "--data", str(tasks), option])
    assert "has no exits with selectors of their own. Train it" in capsys.readouterr().err


def test_no_test_is_opened_for_a_checkpoint(
    exits_checkpoint: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One with a recipe, whose opening would leave a line beside it."""
    checkpoint = Path(shutil.copytree(exits_checkpoint, tmp_path / "checkpoint"))
    write_record(checkpoint, {"recipe": {"seed": 1}})
    with pytest.raises(SystemExit, match="2"):
        main(["depths", str(checkpoint), "--data", str(tasks)])
    assert "with --depths, or score a checkpoint with --dev-only or --pairs" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / TEST_USE_FILE).exists()
    assert log_test_use(str(checkpoint)) is None
    assert (tmp_path / TEST_USE_FILE).exists(), "this is where it would have been"


def test_each_pair_of_depths_is_scored_on_development_data(
    artifact: Path, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Source sentences at the depth of the row, the others at the depth of the column."""
    run("depths", artifact, "--data", tasks, "--pairs")
    printed = capsys.readouterr().out
    assert printed.startswith(f"\n{WITHOUT_OVERLAP}; rows")
    rows = re.findall(r"^\| (\d) \| (.*) \|$", printed, re.MULTILINE)
    assert [depth for depth, _ in rows] == ["2", "3", "4", "6"]
    scores = {int(depth): [float(score) for score in row.split(" | ")] for depth, row in rows}
    dev = read_development_pairs(tasks / "sts").without_overlap
    encode = OnnxEncoder(Artifact.open(artifact)).encode
    shallow = spearman(encode(dev.first, depth=2), encode(dev.second), dev.gold)
    assert scores[2][-1] == pytest.approx(shallow, abs=0.006)
    assert scores[2][-1] != scores[6][0]


def test_a_text_is_embedded_once_at_each_depth(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = OnnxEncoder(Artifact.open(artifact))
    asked: list[int | None] = []

    def encode(texts: Sequence[str], *, depth: int | None, **options: object) -> Rows:
        asked.extend([depth] * len(texts))
        return np.ones((len(texts), 32), np.float32)

    monkeypatch.setattr(encoder, "encode", encode)
    found = score_grid(
        artifact_depths(encoder), lambda embed: {"width": embed(["a", "b"]).shape[1]}
    )
    assert found == {"width": dict.fromkeys((2, 3, 4, 6), {8: 8, 32: 32})}
    assert asked == [2, 2, 3, 3, 4, 4, None, None]


def test_the_table_has_a_row_a_depth_and_a_column_a_width() -> None:
    grid = {2: {64: 70.126, 384: 71.0}, 10: {64: 77.5, 384: 80.0}}
    assert by_depth_table(describe(grid, {2: 0.364, 10: 1.0})) == (
        "| blocks run | time of a text | 64 dimensions | 384 dimensions |\n"
        "| --- | --- | --- | --- |\n"
        "| 2 of 10 | 0.36 | 70.13 | 71.00 |\n"
        "| 10 of 10 | 1.00 | 77.50 | 80.00 |"
    )
    assert by_depth_table({}) == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dev-only", "--record"], "--dev-only and --record exclude each other: give one"),
        (["--only-table", "--record"], "--only-table and --record exclude each other"),
        (["--pairs", "--record"], "--pairs and --record exclude each other"),
        (["--pairs", "--dev-only"], "--pairs and --dev-only exclude each other"),
        (["--retrieval", "any.tsv"], "--retrieval is development data: add --dev-only or"),
        (["--only-table"], "has no scores by depth: run depths with --record"),
    ],
)
def test_options_that_would_be_left_out_are_refused(
    artifact: Path, tasks: Path, options: list[str], message: str, refusal: Callable[..., str]
) -> None:
    assert message in refusal("depths", artifact, "--data", tasks, *options)


def test_an_artifact_without_depths_is_refused(
    tiny_artifact: Artifact, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["depths", str(tiny_artifact.path), "--data", str(tasks)])
    assert "can only run to its full depth. Export its checkpoint with" in capsys.readouterr().err
