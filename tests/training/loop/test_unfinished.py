"""A run that was killed, or found the disk full, goes on from what it saved whole."""

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerCallback, TrainerControl, TrainerState

from s2sent.training.errors import ConfigError, DataError, Interrupted, TrainingError
from s2sent.training.fit.train import train
from s2sent.training.loop.callbacks import Saves
from s2sent.training.loop.trainer import Trainer
from s2sent.training.loop.unfinished import RECIPE_FILE
from s2sent.training.loop.weights import BEST_FILE, WEIGHTS_FILE
from s2sent.training.recipe.recipe import Recipe, read_recipe
from tests.support.folder_contents import contents
from tests.support.interruption import interrupted_at

STATE = "trainer_state.json"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def interrupted(recipe: Recipe, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """States of runs of seven steps: interrupted after 5, and beside it that of step 3."""
    folder = tmp_path_factory.mktemp("interrupted")
    with interrupted_at(3), pytest.raises(Interrupted):
        train(recipe, data, folder / "out")
    shutil.copytree(folder / "out.partial" / "checkpoint-3", folder / "checkpoint-3")
    with interrupted_at(5), pytest.raises(Interrupted):
        train(recipe, data, folder / "out", resume=True)
    return folder


@pytest.fixture
def partial(interrupted: Path, tmp_path: Path) -> Path:
    """The folder of a run that was interrupted after step 5 of 7."""
    folder = Path(shutil.copytree(interrupted / "out.partial", tmp_path / "out.partial"))
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-5"]
    return folder


@pytest.fixture
def two_states(partial: Path, interrupted: Path) -> Path:
    """That of a run that was killed after it saved step 5, before it removed step 3."""
    shutil.copytree(interrupted / "checkpoint-3", partial / "checkpoint-3")
    return partial


@pytest.fixture(scope="module")
def whole(recipe: Recipe, data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run from beginning to end."""
    output = tmp_path_factory.mktemp("whole") / "out"
    train(recipe, data, output)
    return contents(output)


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
        (WEIGHTS_FILE, Path.unlink),
    ],
)
def test_it_goes_on_from_the_newest_state_that_is_whole(
    recipe: Recipe,
    data: Path,
    two_states: Path,
    whole: dict[str, bytes],
    caplog: pytest.LogCaptureFixture,
    file: str,
    damage: Callable[[Path], None],
) -> None:
    """With the same checkpoint in the end, byte for byte."""
    partial = two_states
    damage(partial / "checkpoint-5" / file)
    train(recipe, data, partial.with_name("out"), resume=True)
    assert f"{partial / 'checkpoint-5'} was not saved whole and is removed" in caplog.messages
    assert contents(partial.with_name("out")) == whole


def test_without_a_whole_state_it_begins_anew_and_says_so(
    recipe: Recipe,
    data: Path,
    partial: Path,
    whole: dict[str, bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for state in partial.glob(f"checkpoint-*/{STATE}"):
        state.unlink()
    train(recipe, data, partial.with_name("out"), resume=True)
    assert f"{partial} holds no whole state to go on from: training begins anew" in caplog.messages
    assert contents(partial.with_name("out")) == whole


def saves_of(
    recipe: Recipe, data: Path, output: Path, monkeypatch: pytest.MonkeyPatch, minutes: float
) -> dict[int, list[str]]:
    """The states that are on disk after each step that saves one, by this step."""
    save, found = Trainer._save_checkpoint, {}
    folder = output.with_name("out.partial")

    def watched(self: Trainer, *args: Any, **kwargs: Any) -> None:
        save(self, *args, **kwargs)
        names = sorted(path.name for path in folder.glob("checkpoint-*"))
        found[self.state.global_step] = names

    monkeypatch.setattr(Trainer, "_save_checkpoint", watched)
    train(recipe, data, output, save_minutes=minutes)
    return found


def test_the_state_is_saved_by_time_and_not_with_every_score(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dev is scored at steps 2, 4, 6 and 7; a new state takes the place of the last."""
    found = saves_of(recipe, data, tmp_path / "out", monkeypatch, 10)
    assert found == {7: ["checkpoint-7"]}
    found = saves_of(recipe, data, tmp_path / "often" / "out", monkeypatch, 0)
    assert found == {step: [f"checkpoint-{step}"] for step in (2, 4, 6, 7)}


def test_minutes_are_counted_from_the_last_save(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("s2sent.training.loop.callbacks.time", clock)
    saves, state, control = Saves(1), TrainerState(max_steps=99), TrainerControl()
    asked = []
    for step, seconds in ((10, 30.0), (20, 61.0), (25, 200.0), (30, 100.0), (40, 125.0)):
        now[0], state.global_step, control.should_save = seconds, step, False
        saves.on_step_end(SimpleNamespace(logging_steps=10), state, control)
        asked.append(control.should_save)
        if control.should_save:
            saves.on_save(None, state, control)
    assert asked == [False, True, False, False, True]


def test_a_state_holds_the_best_weights_too(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are of an earlier step, whose own state is gone; the run ends with them."""
    scores = chain([50.0, 90.0], repeat(60.0))  # of the start, of step 2, of all others
    monkeypatch.setattr("s2sent.training.loop.dev.spearman", lambda *_: next(scores))
    monkeypatch.setattr("s2sent.training.fit.train.DEV_TOLERANCE", 99)
    with interrupted_at(5), pytest.raises(Interrupted):
        train(recipe, data, tmp_path / "out")
    assert (tmp_path / "out.partial" / "checkpoint-5" / BEST_FILE).is_file()
    outcome = train(recipe, data, tmp_path / "out", resume=True)
    assert (outcome.step, outcome.dev) == (2, 90)
    scores = chain([50.0, 90.0], repeat(60.0))
    train(recipe, data, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_state_without_the_best_weights_is_not_whole(
    recipe: Recipe,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patch:
        scores = chain([50.0, 90.0], repeat(60.0))
        patch.setattr("s2sent.training.loop.dev.spearman", lambda *_: next(scores))
        with interrupted_at(5), pytest.raises(Interrupted):
            train(recipe, data, tmp_path / "out")
    (tmp_path / "out.partial" / "checkpoint-5" / BEST_FILE).unlink()
    train(recipe, data, tmp_path / "out", resume=True)
    assert "training begins anew" in caplog.text


KILLED = """
import os, sys
from pathlib import Path
from s2sent.training.loop.trainer import Trainer
from s2sent.training.recipe.recipe import read_recipe
from s2sent.training.fit.train import train

step = Trainer.training_step
def killed(self, *args, **kwargs):
    if self.state.global_step == 5:
        os.kill(os.getpid(), 9)
    return step(self, *args, **kwargs)
Trainer.training_step = killed
recipe, data, output = map(Path, sys.argv[1:])
train(read_recipe(recipe), data, output, save_minutes=0)
"""


def test_a_killed_process_resumes_to_the_bit(recipe: Recipe, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(
        f"""seed = 3
        backbone = {{ name = "{recipe.backbone.name}", max_seq_length = 32 }}
        selector = {{ reduction = 4 }}
        corpus = [{{ source = "captions" }}]
        objective = {{ name = "simcse" }}
        training = {{ steps = 7, batch_size = 8, eval_every = 2, learning_rate = 1e-3 }}"""
    )
    arguments = [str(file), str(data), str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=ROOT, check=False)
    assert done.returncode == -9
    assert [path.name for path in tmp_path.glob("out.partial/checkpoint-*")] == ["checkpoint-4"]
    train(read_recipe(file), data, tmp_path / "out", resume=True)
    train(read_recipe(file), data, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_run_that_was_killed_after_its_last_step_is_not_trained_further(
    recipe: Recipe,
    data: Path,
    whole: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("s2sent.training.fit.train._save", killed)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, data, tmp_path / "out")
    train(recipe, data, tmp_path / "out", resume=True)
    assert contents(tmp_path / "out") == whole


class LittleRoom(TrainerCallback):
    """After step 3 no file can be longer than a share of the model."""

    def __init__(self, partial: Path, share: float) -> None:
        self.partial, self.share = partial, share

    def on_step_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 3:
            model = self.partial / "checkpoint-2" / WEIGHTS_FILE
            limit = int(model.stat().st_size * self.share)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


@pytest.mark.parametrize("share", [0.5, 1.5], ids=["model", "optimizer"])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_once_there_is_room(
    recipe: Recipe, data: Path, whole: dict[str, bytes], tmp_path: Path, share: float
) -> None:
    full = LittleRoom(tmp_path / "out.partial", share)
    try:
        with pytest.raises(TrainingError, match="checkpoint-4 cannot be saved .* --resume") as said:
            train(recipe, data, tmp_path / "out", save_minutes=0, callbacks=[full])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert "\n" not in str(said.value)
    train(recipe, data, tmp_path / "out", resume=True)
    assert contents(tmp_path / "out") == whole


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
