"""Training: one seed one checkpoint, resumed or not; the best step kept; what is refused."""

import json
import math
import signal
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from s2sent.model.network.encoder import find_selector, load_encoder, max_positions
from s2sent.training.errors import ConfigError, DataError, Interrupted, TrainingError
from s2sent.training.evaluation.encoders import load_checkpoint, open_encoder, torch_encode
from s2sent.training.evaluation.sts import read_sentence_pairs, spearman
from s2sent.training.files.record import source_sha256
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.fit.train import train
from s2sent.training.loop.trainer import Trainer
from s2sent.training.recipe.objectives import PromptBERT
from s2sent.training.recipe.recipe import BackboneConfig, CorpusPart, Recipe
from tests.support.folder_contents import contents
from tests.support.interruption import interrupted_at
from tests.support.tiny_recipes import QUICK, every_objective, with_objective


@pytest.mark.parametrize(
    ("place", "selected"),
    [*((place, True) for place in range(6)), (0, False), (3, False)],
    ids=["simcse", "head", "pairs", "prompt", "distil", "graded", "plain-simcse", "plain-prompt"],
)
def test_every_objective_trains_every_weight_it_should(
    recipe: Recipe, backbone: Path, data: Path, tmp_path: Path, place: int, selected: bool
) -> None:
    """With the selector and without; what is saved is another encoder than the one it began as."""
    recipe = with_objective(recipe, every_objective(backbone)[place])
    recipe = replace(recipe, selector={"reduction": 4} if selected else None)
    torch.manual_seed(recipe.seed)
    before = new_encoder(recipe).state_dict()
    outcome = train(recipe, data, tmp_path / "out")
    assert open_encoder(str(tmp_path / "out"))(["a dog"]).shape == (1, 32)
    encoder = load_checkpoint(tmp_path / "out")
    after = encoder.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert (find_selector(encoder) is not None) == selected
    assert any("layer.0" in name for name in moved)
    assert any("spatial_selection" in name for name in moved) == selected
    assert [step for step, _ in outcome.curve] == [0, 2, 4, 6, 7]


def test_one_seed_gives_one_checkpoint_byte_for_byte(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        train(recipe, data, tmp_path / name)
    train(replace(recipe, seed=4), data, tmp_path / "other")
    one, other = contents(tmp_path / "one"), contents(tmp_path / "other")
    assert one == contents(tmp_path / "two")
    assert one["model.safetensors"] != other["model.safetensors"]


@pytest.mark.parametrize(
    ("place", "step"), [(0, 4), (1, 3), (3, 3)], ids=["simcse", "head", "prompt"]
)
def test_an_interrupted_run_resumes_to_the_same_checkpoint(
    recipe: Recipe,
    backbone: Path,
    data: Path,
    tmp_path: Path,
    place: int,
    step: int,
) -> None:
    """Dropout, the order of the rows, the optimiser and a head go on where they were; between two
    looks at dev or at one. Every byte is the uninterrupted run's."""
    recipe = with_objective(recipe, every_objective(backbone)[place])
    train(recipe, data, tmp_path / "whole")
    with interrupted_at(step), pytest.raises(Interrupted, match=f"step {step} of 7.*--resume"):
        train(recipe, data, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    train(recipe, data, tmp_path / "out", resume=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_a_signal_with_the_last_step_ends_a_whole_run_and_is_told(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is there; whoever runs a series goes no further."""
    original = Trainer.training_step

    def interrupted(self: Trainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.state.global_step == QUICK.steps - 1:
            signal.raise_signal(signal.SIGTERM)
        loss: torch.Tensor = original(self, *args, **kwargs)
        return loss

    monkeypatch.setattr(Trainer, "training_step", interrupted)
    assert train(recipe, data, tmp_path / "out").stopped == signal.SIGTERM
    assert (tmp_path / "out" / "training.json").is_file()


def test_what_is_resumed_must_be_what_was_begun(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: Trainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise KeyboardInterrupt  # a second signal, or the machine's end

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, data, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"out\.partial holds an interrupted run.*--resume"):
        train(recipe, data, tmp_path / "out")
    with pytest.raises(ConfigError, match="begun with another recipe"):
        train(replace(recipe, seed=9), data, tmp_path / "out", resume=True)
    train(recipe, data, tmp_path / "out", resume=True)  # from the start: no state was saved
    assert (tmp_path / "out" / "training.json").is_file()


def test_two_runs_cannot_train_in_one_folder(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that began before the other's folder was there too: it would write over its states."""
    said = []

    class Second(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            for resume in (False, True):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("s2sent.training.fit.train.require_free", lambda *_, **__: None)
                    with pytest.raises(ConfigError) as caught:
                        train(recipe, data, tmp_path / "out", resume=resume)
                said.append(str(caught.value))

    train(recipe, data, tmp_path / "out", callbacks=[Second()])
    assert [line.split(":")[0] for line in said] == [
        f"{tmp_path / 'out.partial'} is in use by another process, which trains there"
    ] * 2
    monkeypatch.setattr("s2sent.training.fit.train.require_free", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="out exists already"):  # one that comes to it later
        train(recipe, data, tmp_path / "out")


def test_a_run_that_diverges_leaves_no_checkpoint(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    steep = replace(QUICK, learning_rate=1e20)
    with pytest.raises(TrainingError, match="diverged"):
        train(replace(recipe, training=steep), data, tmp_path / "out")
    assert not [*tmp_path.glob("out*")]  # nor anything to go on from


def test_a_score_that_is_no_number_is_null_in_the_record(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = chain([50.0, 60.0, *[math.nan] * 3], repeat(60.0))  # of the saved one too
    monkeypatch.setattr("s2sent.training.loop.dev.spearman", lambda *_: next(scores))
    train(recipe, data, tmp_path / "out")
    text = (tmp_path / "out" / "training.json").read_text()
    record = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    steps, found = zip(*record["dev"]["curve"], strict=True)
    assert (steps, found) == ((0, 2, 4, 6, 7), (50, 60, None, None, None))


@pytest.mark.parametrize(("start", "warned"), [(70.0, True), (60.0, False)])
def test_a_start_above_every_step_is_warned_of(
    recipe: Recipe,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    start: float,
    warned: bool,
) -> None:
    scores = chain([start, 60.0, 65.0], repeat(65.0))
    monkeypatch.setattr("s2sent.training.loop.dev.spearman", lambda *_: next(scores))
    outcome = train(recipe, data, tmp_path / "out")
    assert (outcome.step, outcome.dev) == (4, 65)
    said = "STS-B dev was 70.00 before the first step and is 65.00 at step 4"
    assert (said in caplog.text) == warned


def test_texts_are_cut_where_the_positions_of_the_backbone_end(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """Whatever the recipe says, in training and in what is saved."""
    with (data / "corpus" / "long.txt").open("w") as file:
        file.writelines(f"{'a dog ' * 300}{number}\n" for number in range(16))
    recipe = replace(
        recipe,
        backbone=replace(recipe.backbone, max_seq_length=5000),
        corpus=[CorpusPart(source="long.txt")],
        training=replace(QUICK, max_seq_length=5000, steps=1),
    )
    train(recipe, data, tmp_path / "out")
    encoder = load_checkpoint(tmp_path / "out")
    positions = max_positions(encoder[0])
    assert positions is not None
    assert encoder.max_seq_length == positions < 300


def test_the_checkpoint_is_the_best_on_dev_not_the_last(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """What is saved scores what the best step scored, and its record says so."""
    wild = replace(recipe, training=replace(QUICK, learning_rate=3e-3, steps=8))
    outcome = train(wild, data, tmp_path / "out")
    scores = dict(outcome.curve)
    assert outcome.dev == max(score for step, score in scores.items() if step)
    assert outcome.step < 8, "a learning rate this high should do harm in the end"
    dev = read_sentence_pairs(data / "sts" / "stsb-dev.tsv")
    encode = torch_encode(load_encoder(tmp_path / "out"))
    score = spearman(encode(dev.first), encode(dev.second), dev.gold)
    assert score == pytest.approx(outcome.dev, abs=0.01)
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["dev"]["score"] == pytest.approx(outcome.dev, abs=1e-4)
    assert record["corpus"]["rows"] == {"captions": 60, "wikisplit": 20}
    assert sum(record["mean_block_weights"]) == pytest.approx(1, abs=1e-3)
    assert record["source_sha256"] == source_sha256()
    assert "dirty" in record


def test_a_state_that_cannot_be_loaded_stops_the_run(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is trained, or saved as if it were best."""
    with interrupted_at(4), pytest.raises(Interrupted):
        train(recipe, data, tmp_path / "out")

    def broken(self: Trainer, *args: Any, **kwargs: Any) -> None:
        raise OSError("disk")

    monkeypatch.setattr(Trainer, "_load_from_checkpoint", broken)
    with pytest.raises(OSError, match="disk"):
        train(recipe, data, tmp_path / "out", resume=True)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_scores_otherwise_than_in_training_is_not_kept(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "use_best_weights", lambda self: None)  # the last step's stay
    wild = replace(recipe, training=replace(QUICK, learning_rate=3e-3, steps=8))
    with pytest.raises(RuntimeError, match="the saved checkpoint scores"):
        train(wild, data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_second_run_begins_where_the_first_ended_and_tells_so(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """The record has the first run's, so that both can be run again; the backbone stays its own."""
    train(replace(recipe, selector=None), data, tmp_path / "first")
    name = BackboneConfig(name=str(tmp_path / "first"), max_seq_length=32)
    second = train(replace(recipe, backbone=name), data, tmp_path / "second")
    first = json.loads((tmp_path / "first" / "training.json").read_text())
    assert second.record["began_from"] == first
    assert second.record["backbone"] == first["backbone"] == {"name": recipe.backbone.name}
    assert second.curve[0][1] != pytest.approx(first["dev"]["curve"][0][1], abs=1e-6)


def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """One sentence each, and no folder that a second try would trip over."""
    with pytest.raises(ConfigError, match="exists already"):
        train(recipe, data, tmp_path)
    no_gate = {"spatial_selection": "avg", "initial_bias": 1.0}
    frozen = replace(QUICK, freeze_backbone=True)
    for bad, says in (
        (replace(recipe, selector={"num_blocks": 9}), "num_blocks is 9"),
        (replace(recipe, selector=no_gate), "need a gate with biases"),
        (replace(recipe, selector=None, training=frozen), "nothing to train"),
        (
            replace(recipe, objective=PromptBERT(templates=["{}", "[MASK]"])),
            r"^The template '\[MASK\]' must have one {} for the sentence",
        ),
    ):
        with pytest.raises(ConfigError, match=says):
            train(bad, data, tmp_path / "out")
    big = replace(recipe, training=replace(QUICK, batch_size=64))
    with pytest.raises(DataError, match="captions gave 60 rows, fewer than a batch of 64"):
        train(big, data, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
