"""A run that keeps rows without an embedding says how many, and ends where they are too many."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from s2sent.model.artifact.reader import Artifact
from s2sent.service.__main__ import app
from s2sent.service.bulk.job import BulkError, Options
from tests.support.fake_embed_service import FakeService
from tests.support.fake_embedder import FakeEmbedder, embed_files
from tests.support.serving import serving

run = CliRunner().invoke


def write(path: Path, texts: list[str]) -> Path:
    """A text a line."""
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def test_a_service_that_fails_at_every_text_does_not_end_in_success(tmp_path: Path) -> None:
    texts = write(tmp_path / "a.txt", [f"null {at}" for at in range(4)])
    with serving(FakeService()) as service:
        command = ["embed", str(texts), "-o", str(tmp_path / "out"), "--server", service.url]
        result = run(app, [*command, "--on-error", "null"])
        assert result.exit_code == 1
        assert "4 of 4 texts have no embedding, the last one because the service cannot embed" in (
            result.stderr
        )
        assert "run the same command with --resume, or allow a larger share by --max-failed." in (
            result.stderr
        )
        assert not (tmp_path / "out" / "_SUCCESS").exists()
        command += ["--on-error", "null", "--max-failed", "1", "--resume"]
        result = run(app, command)
    assert result.exit_code == 0
    assert result.stderr.endswith("complete: 4 rows in 1 parts, 4 of them without an embedding.\n")


@pytest.mark.parametrize(("share", "stops"), [(0.0, True), (0.3, True), (0.4, False), (1, False)])
def test_the_share_is_that_of_the_texts_that_were_tried(
    tmp_path: Path, share: float, stops: bool
) -> None:
    """Rows without a text count for neither: the input has them, whatever embeds it."""
    texts = write(tmp_path / "a.txt", ["good", "", "bad", "", "good", "", ""])
    embedder = FakeEmbedder(broken=("bad",))
    arguments: dict[str, Any] = {"embedder": embedder, "null_errors": True, "max_failed": share}
    if stops:
        with pytest.raises(BulkError, match="1 of 3 texts have no embedding, the last one because"):
            embed_files([texts], tmp_path / "out", Options(), **arguments)
    else:
        assert embed_files([texts], tmp_path / "out", Options(), **arguments).failed == 5


def test_rows_without_an_embedding_are_counted(tmp_path: Path, tiny_artifact: Artifact) -> None:
    texts = write(tmp_path / "a.txt", ["one", "", "three"])
    command = ["embed", str(texts), "-o", str(tmp_path / "out"), "--on-error", "null"]
    result = run(app, [*command, "--artifact", str(tiny_artifact.path)])
    assert result.exit_code == 0
    assert result.stderr.endswith("3 rows in 1 parts, 1 of them without an embedding.\n")


@pytest.mark.parametrize("share", ["-0.1", "1.5", "nan"])
def test_a_share_is_from_0_to_1(tmp_path: Path, share: str) -> None:
    texts = write(tmp_path / "a.txt", ["one"])
    result = run(app, ["embed", str(texts), "-o", str(tmp_path / "out"), "--max-failed", share])
    assert result.exit_code == 2
    assert "it may be 0 to 1. Give a number in that range." in result.stderr
