"""Inputs whose first rows show that a run would fail are refused before an output is touched."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from s2sent.model.artifact.reader import Artifact
from s2sent.service.__main__ import app
from tests.support.bulk_files import contents

run = CliRunner().invoke


@pytest.fixture
def command(tmp_path: Path, tiny_artifact: Artifact) -> list[str]:
    """The command over the input of a run that is complete."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    command = ["embed", str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "out")]
    command += ["--artifact", str(tiny_artifact.path)]
    assert run(app, command).exit_code == 0
    return command


@pytest.mark.parametrize("on_error", ["stop", "null"])
@pytest.mark.parametrize("flag", ["--text-column", "--id-column"])
def test_a_key_that_no_row_has_leaves_the_output_as_it_is(
    tmp_path: Path, command: list[str], flag: str, on_error: str
) -> None:
    before = contents(tmp_path / "out")
    result = run(app, [*command, "--overwrite", flag, "nope", "--on-error", on_error])
    assert result.exit_code == 1
    assert "a.jsonl, row 1: it has no 'nope'" in result.stderr
    assert "in each of the first 2 rows. Name other keys by --text-column and" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert contents(tmp_path / "out") == before


def test_a_first_row_that_stops_the_run_leaves_the_output_as_it_is(
    tmp_path: Path, command: list[str]
) -> None:
    before = contents(tmp_path / "out")
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": "two"}\n')
    result = run(app, [*command, "--overwrite"])
    assert result.exit_code == 1
    assert "a.jsonl, row 1: the text is empty. Mend the row, or leave its" in result.stderr
    assert contents(tmp_path / "out") == before
    result = run(app, [*command, "--overwrite", "--on-error", "null"])
    assert result.exit_code == 0, result.stderr


def test_a_row_without_the_key_among_others_is_left_out(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"txt": "one"}\n{"text": "two"}\n')
    result = run(app, [*command, "--overwrite", "--on-error", "null"])
    assert result.exit_code == 0, result.stderr


def test_rows_without_the_key_are_kept_where_nothing_is_deleted(
    tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"txt": "one"}\n')
    new = [*command, "-o", str(tmp_path / "new"), "--on-error", "null"]
    result = run(app, new)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "new" / "_parts" / "000000.json").is_file()


def test_a_run_that_is_resumed_may_have_left_out_its_first_row(
    tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": "two"}\n')
    assert run(app, [*command, "--overwrite", "--on-error", "null"]).exit_code == 0
    result = run(app, [*command, "--resume"])
    assert result.exit_code == 0, result.stderr
