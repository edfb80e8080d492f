"""The trainer: dev scores, precision, learning rates, clipping, batches over processes."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import TrainerCallback, TrainerControl, TrainerState

from s2sent.model.network.encoder import load_encoder
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.encoders import torch_encode
from s2sent.training.evaluation.sts import read_sentence_pairs, spearman
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.fit.preparation import PRECISION_VARIABLE
from s2sent.training.fit.train import train
from s2sent.training.loop.dev import tf32
from s2sent.training.loop.trainer import MAX_GRADIENT_NORM, Trainer
from s2sent.training.recipe.objectives import Objective, PromptBERT, SimCSE
from s2sent.training.recipe.recipe import Recipe
from tests.support.gradients_of_two import write_gradients
from tests.support.tiny import tiny_decoder
from tests.support.tiny_recipes import QUICK, with_objective

ROOT = Path(__file__).parents[3]
SHARED = ("supervised", "distillation", "pair_distillation", "elastic", "sfp")  # they compare rows


def test_training_reads_short_and_dev_reads_to_the_limit(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are cut in training only, and the checkpoint keeps its own limit."""
    recipe = replace(recipe, training=replace(QUICK, max_seq_length=5, steps=2))
    lengths: list[int] = []
    step = Trainer.training_step

    def watched(self: Trainer, model: Any, inputs: dict[str, Any], *args: Any) -> torch.Tensor:
        lengths.append(inputs["anchor_input_ids"].shape[1])
        loss: torch.Tensor = step(self, model, inputs, *args)
        return loss

    monkeypatch.setattr(Trainer, "training_step", watched)
    train(recipe, data, tmp_path / "out")
    assert lengths == [5, 5]
    assert load_encoder(tmp_path / "out").max_seq_length == 32


def test_dev_is_scored_in_full_precision_whatever_training_computes_in(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """What chooses the checkpoint is what the checkpoint will score: to the last digits."""
    half = replace(recipe, training=replace(QUICK, precision="bf16"))
    outcome = train(half, data, tmp_path / "out")
    assert PRECISION_VARIABLE not in os.environ  # the next run has a precision of its own
    dev = read_sentence_pairs(data / "sts" / "stsb-dev.tsv")
    encode = torch_encode(load_encoder(tmp_path / "out"))
    score = spearman(encode(dev.first), encode(dev.second), dev.gold)
    assert score == pytest.approx(outcome.dev, abs=1e-3)


@pytest.mark.parametrize(
    "objective",
    [SimCSE(projection=True, temperature=1e-3), PromptBERT(temperature=1e-3)],
    ids=["head", "prompt"],
)
def test_the_gradients_of_a_head_are_clipped_with_the_encoders(
    recipe: Recipe, data: Path, tmp_path: Path, objective: Objective
) -> None:
    """The norm over all trained weights is at most the limit when the optimiser steps."""
    norms: list[float] = []

    class WatchNorm(TrainerCallback):
        def on_pre_optimizer_step(
            self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
        ) -> None:
            groups = kwargs["optimizer"].param_groups
            grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
            norms.append(float(torch.nn.utils.get_total_norm(grads)))

    steep = with_objective(recipe, objective)
    train(steep, data, tmp_path / "out", callbacks=[WatchNorm()])
    assert norms == pytest.approx([MAX_GRADIENT_NORM] * QUICK.steps, rel=1e-3)


def test_the_selector_can_have_a_learning_rate_of_its_own(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """Adam's first step is the learning rate, whatever the gradient's size."""
    one_step = replace(
        QUICK, steps=1, eval_every=1, learning_rate=1e-4, selector_learning_rate=1e-2
    )
    recipe = replace(recipe, training=one_step)
    torch.manual_seed(recipe.seed)
    before = new_encoder(recipe).state_dict()
    train(recipe, data, tmp_path / "out")
    after = load_encoder(tmp_path / "out").state_dict()
    moved = {
        name: float((after[name] - before[name]).abs().max())
        for name in before
        if "norms" not in name
    }
    assert moved["1.spatial_selection.expand.weight"] == pytest.approx(1e-2, rel=0.02)
    backbone = {name: step for name, step in moved.items() if name.startswith("0.")}
    assert max(backbone.values()) == pytest.approx(1e-4, rel=0.05)


@pytest.mark.parametrize("group_by_length", [False, True])
def test_the_recipe_s_seed_orders_the_rows(
    recipe: Recipe,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group_by_length: bool,
) -> None:
    first_rows: list[list[list[int]]] = []

    def watched(_self: Trainer, _model: Any, inputs: dict[str, Any], *_: Any) -> torch.Tensor:
        first_rows.append(inputs["anchor_input_ids"].tolist())
        return torch.zeros(())

    monkeypatch.setattr(Trainer, "training_step", watched)
    training = replace(QUICK, steps=1, eval_every=1, group_by_length=group_by_length)
    for number, seed in enumerate((1, 1, 2)):
        train(replace(recipe, seed=seed, training=training), data, tmp_path / str(number))
    assert first_rows[0] == first_rows[1] != first_rows[2]


def test_a_selector_without_weights_has_no_learning_rate_of_its_own(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    mean = {"num_blocks": 3, "spatial_selection": "avg"}
    training = replace(QUICK, steps=1, eval_every=1, selector_learning_rate=1e-2)
    assert train(replace(recipe, selector=mean, training=training), data, tmp_path / "out").curve


@pytest.fixture(scope="module")
def gradients_by_processes(
    backbone: Path, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with the first gradients in ``one`` process and in ``two``, by objective."""
    folder = tmp_path_factory.mktemp("processes")
    still = shutil.copytree(backbone, folder / "still")
    config = json.loads((still / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (still / "config.json").write_text(json.dumps(config))
    decoder = tiny_decoder(folder / "decoder")
    recipes = [
        still_recipe(decoder if objective == "sfp" else still, folder / f"{objective}.toml")
        for objective in SHARED
    ]
    arguments = [str(data), str(folder / "two"), *map(str, recipes)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.gradients_of_two", *arguments],
        cwd=ROOT,
        env={key: os.environ[key] for key in ("PATH", "HOME")},  # nothing of earlier runs
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    write_gradients(data, folder / "one", recipes)
    return folder


def still_recipe(backbone: Path, file: Path) -> Path:
    """A recipe of the objective that ``file`` is named after, for a backbone without dropout."""
    name = "supervised" if file.stem == "elastic" else file.stem
    teacher = f', teachers = ["{backbone}"]' if "distillation" in name else ""
    template = ', template = "sfp", pooling = "last_token"' if name == "sfp" else ""
    preset = ', preset = "decoder"' if name == "sfp" else ""
    sizes = 'depths = [2, 3], dimensions = [8], align = "cosine", project = true'
    file.write_text(
        f"""seed = 3
        backbone = {{ name = "{backbone}", max_seq_length = 32{template} }}
        selector = {{ reduction = 4{preset} }}
        corpus = [{{ source = "captions" }}]
        objective = {{ name = "{name}"{teacher} }}
        training = {{ steps = 2, batch_size = 16, eval_every = 2 }}
        {f"elastic = {{ {sizes} }}" if file.stem == "elastic" else ""}"""
    )
    return file


@pytest.mark.parametrize("objective", SHARED)
def test_two_processes_share_a_batch_as_if_they_were_one(
    gradients_by_processes: Path, objective: str
) -> None:
    """2 x 8 rows under torchrun give the gradients of 1 x 16: negatives come from both."""
    assert (gradients_by_processes / "two" / objective / "training.json").is_file()
    one, two = (
        torch.load(gradients_by_processes / processes / f"{objective}.pt")
        for processes in ("one", "two")
    )
    assert one.keys() == two.keys()
    assert any("spatial_selection" in name for name in one)
    assert any("projections" in name for name in one) == (objective == "elastic")
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-3, atol=1e-6, msg=name)


def test_a_batch_that_processes_cannot_share_is_refused(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="batch_size = 8 cannot be shared by 3 processes"):
        train(recipe, data, tmp_path / "out")


def test_of_several_visible_gpus_one_is_used_and_torchrun_is_named(
    recipe: Recipe,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The library would wrap the model in DataParallel, and double the batch."""
    rows: list[int] = []
    made = SentenceTransformerTrainingArguments.__post_init__
    step = Trainer.training_step

    def two_gpus(self: SentenceTransformerTrainingArguments) -> None:
        made(self)  # type: ignore[no-untyped-call]  # the library is partly typed
        self._n_gpu = 2

    def watched(self: Trainer, model: Any, inputs: dict[str, Any], *args: Any) -> torch.Tensor:
        rows.append(len(inputs["anchor_input_ids"]))
        loss: torch.Tensor = step(self, model, inputs, *args)
        return loss

    monkeypatch.setattr(SentenceTransformerTrainingArguments, "__post_init__", two_gpus)
    monkeypatch.setattr(Trainer, "training_step", watched)
    train(recipe, data, tmp_path / "out")
    assert rows == [QUICK.batch_size] * QUICK.steps
    assert "2 GPUs are visible and one is used" in caplog.text
    assert "torchrun --nproc-per-node 2" in caplog.text


def test_no_step_waits_for_its_loss(recipe: Recipe, data: Path, tmp_path: Path) -> None:
    """The library's filter of losses that are no numbers reads each from the device."""

    class Filter(TrainerCallback):
        def on_train_begin(self, args: Any, *rest: Any, **kwargs: Any) -> None:
            filtered.append(args.logging_nan_inf_filter)

    filtered: list[bool] = []
    train(recipe, data, tmp_path / "out", callbacks=[Filter()])
    assert filtered == [False]


@pytest.mark.parametrize(("device", "inside"), [("cuda", "high"), ("cpu", "highest")])
def test_dev_is_scored_with_tf32_on_a_gpu_alone(device: str, inside: str) -> None:
    assert torch.get_float32_matmul_precision() == "highest"
    with tf32(device):
        assert torch.get_float32_matmul_precision() == inside
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_loss_is_logged_as_it_is(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of the steps since the last log; the library rounds it to four decimals."""
    step, losses, logged = Trainer.training_step, [], []

    def watched(self: Trainer, *args: Any) -> torch.Tensor:
        loss: torch.Tensor = step(self, *args) * 1e-4
        losses.append(loss.item())
        return loss

    class Logged(TrainerCallback):
        def on_log(self, *args: Any, **kwargs: Any) -> None:
            logged.extend([kwargs["logs"]["loss"]] if "loss" in kwargs["logs"] else [])

    monkeypatch.setattr(Trainer, "training_step", watched)
    train(recipe, data, tmp_path / "out", callbacks=[Logged()])
    means = [sum(losses[place : place + 2]) / 2 for place in (0, 2, 4)]
    assert logged == pytest.approx(means, rel=1e-3)


def test_the_weights_of_the_fused_blocks_are_told_before_and_after(
    recipe: Recipe, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    gate = {"reduction": 4, "num_blocks": 3, "weight_norm": "softmax_logits", "initial_bias": 3.0}
    moving = replace(QUICK, selector_learning_rate=0.3)
    train(replace(recipe, selector=gate, training=moving), data, tmp_path / "out")
    said = caplog.messages[-1]
    assert said.startswith("mean weights of blocks 2, 3, 4: 0.0025 0.0025 0.9951 before training, ")
    now = [float(word) for word in said.split("before training, ")[1].split()[:3]]
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert now == record["mean_block_weights"]
    assert now != [0.0025, 0.0025, 0.9951]
