"""A run that was killed, or found the disk full, goes on from what it saved whole."""

import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback, TrainerControl, TrainerState

from s2sent.training.errors import ConfigError, DataError, Interrupted, TrainingError
from s2sent.training.loop.unfinished import RECIPE_FILE
from s2sent.training.recipe.recipe import Recipe
from s2sent.training.train import train
from tests.support.folder_contents import contents
from tests.support.interruption import interrupted_at

STATE = "trainer_state.json"


@pytest.fixture
def partial(recipe: Recipe, data: Path, tmp_path: Path) -> Path:
    """The folder of a run that was interrupted after step 5 of 7; it has an earlier state."""
    with interrupted_at(5), pytest.raises(Interrupted):
        train(recipe, data, tmp_path / "out")
    folder = tmp_path / "out.partial"
    assert len([*folder.glob("checkpoint-*")]) == 2
    return folder


def assert_as_uninterrupted(recipe: Recipe, data: Path, output: Path) -> None:
    """The checkpoint is, byte for byte, that of a run from beginning to end."""
    train(recipe, data, output.with_name("whole"))
    assert contents(output) == contents(output.with_name("whole"))


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (STATE, Path.unlink),
        (STATE, halved),
        ("optimizer.pt", Path.unlink),
        ("scheduler.pt", Path.unlink),
        ("rng_state.pth", Path.unlink),
        ("modules.json", Path.unlink),
    ],
)
def test_it_goes_on_from_the_newest_state_that_is_whole(
    recipe: Recipe,
    data: Path,
    partial: Path,
    caplog: pytest.LogCaptureFixture,
    file: str,
    damage: Callable[[Path], None],
) -> None:
    """With the same checkpoint in the end, byte for byte."""
    damage(partial / "checkpoint-5" / file)
    train(recipe, data, partial.with_name("out"), resume=True)
    assert f"{partial / 'checkpoint-5'} was not saved whole and is removed" in caplog.messages
    assert_as_uninterrupted(recipe, data, partial.with_name("out"))


def test_without_a_whole_state_it_begins_anew_and_says_so(
    recipe: Recipe, data: Path, partial: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for state in partial.glob(f"checkpoint-*/{STATE}"):
        state.unlink()
    train(recipe, data, partial.with_name("out"), resume=True)
    assert f"{partial} holds no whole state to go on from: training begins anew" in caplog.messages
    assert_as_uninterrupted(recipe, data, partial.with_name("out"))


def test_a_state_whose_best_step_is_gone_is_not_whole(
    recipe: Recipe, data: Path, partial: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier = next(path for path in partial.glob("checkpoint-*") if path.name != "checkpoint-5")
    earlier.rename(partial.with_name("moved"))
    train(recipe, data, partial.with_name("out"), resume=True)
    assert "training begins anew" in caplog.text


def test_a_run_that_was_killed_after_its_last_step_is_not_trained_further(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("s2sent.training.train._save", killed)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, data, tmp_path / "out")
    train(recipe, data, tmp_path / "out", resume=True)
    assert_as_uninterrupted(recipe, data, tmp_path / "out")


class LittleRoom(TrainerCallback):
    """After step 3 no file can be longer than a share of the model."""

    def __init__(self, partial: Path, share: float) -> None:
        self.partial, self.share = partial, share

    def on_step_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 3:
            model = self.partial / "checkpoint-2" / "model.safetensors"
            limit = int(model.stat().st_size * self.share)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


@pytest.mark.parametrize("share", [0.5, 1.5], ids=["model", "optimizer"])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_once_there_is_room(
    recipe: Recipe, data: Path, tmp_path: Path, share: float
) -> None:
    full = LittleRoom(tmp_path / "out.partial", share)
    try:
        with pytest.raises(TrainingError, match="checkpoint-4 cannot be saved .* --resume") as said:
            train(recipe, data, tmp_path / "out", callbacks=[full])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert "\n" not in str(said.value)
    train(recipe, data, tmp_path / "out", resume=True)
    assert_as_uninterrupted(recipe, data, tmp_path / "out")


@pytest.mark.parametrize("damage", [Path.unlink, halved])
def test_a_run_that_does_not_say_what_it_trains_is_refused(
    recipe: Recipe, data: Path, partial: Path, damage: Callable[[Path], None]
) -> None:
    damage(partial / RECIPE_FILE)
    with pytest.raises(ConfigError, match=r"recipe\.json, .* is missing or not whole: delete"):
        train(recipe, data, partial.with_name("out"), resume=True)


def test_another_number_of_processes_is_refused(
    recipe: Recipe, data: Path, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a state of its own, and the rows of a batch are shared among them."""
    monkeypatch.setattr("s2sent.training.loop.unfinished.num_processes", lambda: 2)
    with pytest.raises(ConfigError, match="another recipe, corpus or number of processes"):
        train(recipe, data, partial.with_name("out"), resume=True)


@pytest.mark.parametrize("pairs", [1, 0])
def test_a_dev_set_that_can_give_no_score_is_refused_before_training(
    recipe: Recipe, data: Path, tmp_path: Path, pairs: int
) -> None:
    folder = tmp_path / "data"
    (folder / "sts").mkdir(parents=True)
    (folder / "corpus").symlink_to(data / "corpus")
    rows = "subset\tscore\tsentence1\tsentence2\n" + "x\t3\ta\tb\n" + "x\t3\tc\td\n"
    (folder / "sts" / "stsb-dev.tsv").write_text(rows)
    recipe = replace(recipe, training=replace(recipe.training, dev_pairs=pairs))
    says = "dev_pairs = 1 takes 1, has one gold score" if pairs else "has one gold score"
    with pytest.raises(DataError, match=f"stsb-dev.*{says}.*a correlation needs two"):
        train(recipe, folder, tmp_path / "out")
    assert not [*tmp_path.glob("out*")]
