"""Runs are trained unless they are there or another process has them."""

import errno
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from s2sent.training.errors import ConfigError, Interrupted, failure
from s2sent.training.experiments import engine
from s2sent.training.experiments.engine import Run, ensure_checkpoint, run_missing
from s2sent.training.files.jsonl import append_line, read_lines
from s2sent.training.files.locks import locked
from s2sent.training.files.record import write_record
from s2sent.training.recipe.recipe import Recipe


class Untrained:
    """Stands for the trainer: leaves a folder with the record of a recipe."""

    def __init__(self) -> None:
        self.outputs: list[Path] = []

    def __call__(self, recipe: Recipe, data: Path, output: Path, **_: Any) -> Any:
        self.outputs.append(output)
        output.mkdir(parents=True)
        write_record(output, {"recipe": recipe.as_table()})
        return SimpleNamespace(stopped=None)


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Untrained:
    train = Untrained()
    monkeypatch.setattr(engine, "train", train)
    return train


def test_a_checkpoint_of_another_recipe_is_not_taken(
    recipe: Recipe, tmp_path: Path, train: Untrained
) -> None:
    folder = tmp_path / "run"
    for _ in range(2):
        ensure_checkpoint(folder, recipe, tmp_path)
    with pytest.raises(ConfigError, match="run is of another recipe: move it away"):
        ensure_checkpoint(folder, replace(recipe, seed=9), tmp_path)
    assert train.outputs == [folder]


def test_a_signal_in_the_last_step_ends_the_series_by_its_number(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = SimpleNamespace(stopped=signal.SIGTERM)
    monkeypatch.setattr(engine, "train", lambda *_, **__: stopped)
    with pytest.raises(Interrupted) as ended:
        ensure_checkpoint(tmp_path / "run", recipe, tmp_path)
    assert failure(ended.value) == (str(ended.value), 128 + signal.SIGTERM)


def test_a_file_system_without_locks_is_worked_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(tmp_path / "run") as free:
        assert free
    append_line(tmp_path / "lines.jsonl", {"arm": "a"})
    assert read_lines(tmp_path / "lines.jsonl") == [{"arm": "a"}]


def test_a_lock_follows_no_link_and_leaves_what_stands_in_its_place(tmp_path: Path) -> None:
    target, file = tmp_path / "target", tmp_path / "run.lock"
    target.write_text("kept")
    file.symlink_to(target)
    with pytest.raises(OSError, match=r"run\.lock"), locked(tmp_path / "run"):
        pass
    assert target.read_text() == "kept"
    os.link(target, tmp_path / "other.lock")
    with locked(tmp_path / "other") as free:
        assert free
    assert target.read_text() == "kept"


def test_a_lock_is_free_once_its_process_has_ended(tmp_path: Path) -> None:
    """However that was; and none is left behind."""
    code = (
        "import sys, pathlib\nfrom s2sent.training.files.locks import locked\n"
        f"with locked(pathlib.Path({str(tmp_path / 'run')!r})):\n"
        " print('held', flush=True)\n sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with locked(tmp_path / "run") as free:
        assert not free
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with locked(tmp_path / "run") as free:
        assert free
        with locked(tmp_path / "run") as again:
            assert not again
    assert not list(tmp_path.glob("*.lock"))


def run_of(folder: Path, recipe: Recipe, arm: str, **changes: Any) -> Run:
    """A run of the file ``runs.jsonl``."""
    checkpoint = folder / "scratch" / f"{arm}.checkpoint"
    run = Run(
        name=arm,
        file=folder / "runs.jsonl",
        key={"arm": arm},
        folder=checkpoint,
        recipes={checkpoint: recipe},
        score=lambda: {"score": 2.0},
    )
    return replace(run, **changes)


def test_a_run_is_added_once_unless_another_process_has_it(
    recipe: Recipe, tmp_path: Path, train: Untrained
) -> None:
    run = run_of(tmp_path, recipe, "a")
    with locked(run.folder):
        run_missing([run], tmp_path)
    assert not run.file.exists()
    for _ in range(2):
        run_missing([run], tmp_path)
    (line,) = read_lines(run.file)
    assert {**line, **run.key, "score": 2.0} == line
    assert train.outputs == [run.folder]
    assert not list(tmp_path.rglob("*.lock"))
    assert not run.folder.exists()


@pytest.mark.usefixtures("train")
def test_a_line_without_what_is_needed_of_it_is_made_again(recipe: Recipe, tmp_path: Path) -> None:
    run = run_of(tmp_path, recipe, "a", needed=("score",))
    append_line(run.file, run.key)
    run_missing([run], tmp_path)
    assert len(read_lines(run.file)) == 2


def test_runs_of_one_folder_share_its_checkpoint(
    recipe: Recipe, tmp_path: Path, caplog: pytest.LogCaptureFixture, train: Untrained
) -> None:
    """It stays until all of them have their lines."""
    runs = [run_of(tmp_path, recipe, "a", key={"arm": arm}) for arm in "ab"]
    with caplog.at_level("INFO"), locked(runs[0].folder):
        run_missing(runs, tmp_path)
    assert "a is run by another process: give this command again" in caplog.text
    run_missing(runs, tmp_path)
    assert train.outputs == [runs[0].folder]
    assert [line["arm"] for line in read_lines(runs[0].file)] == ["a", "b"]
    assert not runs[0].folder.exists()
