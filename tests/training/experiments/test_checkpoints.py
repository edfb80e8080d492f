"""A checkpoint is trained unless it is there or another process has it; kept ones say they opened
the tests."""

import errno
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from s2sent.training.errors import ConfigError, Interrupted, failure
from s2sent.training.evaluation.results.openings import OPENINGS_FILE
from s2sent.training.experiments.checkpoints import ensure_checkpoint, leave_scored, run_missing
from s2sent.training.experiments.locks import claimed, lock_of
from s2sent.training.files.jsonl import append_line, read_lines
from s2sent.training.files.record import write_record
from s2sent.training.frozen.lookup import RememberedStates
from s2sent.training.recipe.recipe import Recipe


def test_a_checkpoint_of_another_recipe_is_not_taken(recipe: Recipe, tmp_path: Path) -> None:
    trained: list[Recipe] = []

    def train(recipe: Recipe, data: Path, output: Path, **_: Any) -> Any:
        trained.append(recipe)
        output.mkdir()
        write_record(output, {"recipe": recipe.as_table()})
        return SimpleNamespace(stopped=None, seconds=2.0)

    folder = tmp_path / "run"
    assert ensure_checkpoint(folder, recipe, tmp_path, train) == 2.0
    assert ensure_checkpoint(folder, recipe, tmp_path, train) is None
    with pytest.raises(ConfigError, match="run is of another recipe: move it away"):
        ensure_checkpoint(folder, replace(recipe, seed=9), tmp_path, train)
    assert trained == [recipe]


def test_a_signal_in_the_last_step_ends_the_series_by_its_number(
    recipe: Recipe, tmp_path: Path
) -> None:
    def train(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(stopped=signal.SIGTERM, seconds=2.0)

    with pytest.raises(Interrupted) as ended:
        ensure_checkpoint(tmp_path / "run", recipe, tmp_path, train)
    assert failure(ended.value) == (str(ended.value), 128 + signal.SIGTERM)


def test_a_file_system_without_locks_is_worked_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with claimed(tmp_path / "lock") as owner:
        assert owner is None
    append_line(tmp_path / "lines.jsonl", {"arm": "a"})
    assert read_lines(tmp_path / "lines.jsonl") == [{"arm": "a"}]
    states = RememberedStates(tmp_path / "cache", 2, 4, max_bytes=10_000)
    states.put((1, 2, 3), torch.ones(2, 3, 4))
    states.close()
    again = RememberedStates(tmp_path / "cache", 2, 4, max_bytes=10_000)
    assert len(again) == 1
    again.close()


def test_a_run_is_added_once_unless_another_process_has_it(tmp_path: Path) -> None:
    file, checkpoint = tmp_path / "runs.jsonl", tmp_path / "new" / "a.checkpoint"
    runs: list[int] = []

    def run() -> dict[str, Any]:
        runs.append(len(runs))
        return {"arm": "a", "score": 1}

    with claimed(lock_of(checkpoint)):
        run_missing(file, {"arm": "a"}, checkpoint, run)
    assert not file.exists()
    for _ in range(2):
        run_missing(file, {"arm": "a"}, checkpoint, run)
    assert read_lines(file) == [{"arm": "a", "score": 1}]
    assert runs == [0]
    assert not lock_of(checkpoint).exists()


@pytest.mark.parametrize("keep", [True, False])
def test_a_checkpoint_that_is_kept_says_that_its_tests_were_opened(
    tmp_path: Path, keep: bool
) -> None:
    checkpoint = tmp_path / "a.checkpoint"
    checkpoint.mkdir()
    write_record(checkpoint, {"recipe": {"seed": 1}})
    leave_scored(checkpoint, keep=keep)
    assert checkpoint.exists() == keep
    noted = [line["name"] for line in read_lines(tmp_path / OPENINGS_FILE)]
    assert noted == ([checkpoint.name] if keep else [])
