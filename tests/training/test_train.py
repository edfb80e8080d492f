"""Training: one seed one checkpoint, resumed or not; the best step kept; shared batches."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.util import cos_sim
from transformers import TrainerCallback, TrainerControl, TrainerState

from model.network.encoder import find_selector, get_selector, load_encoder
from tests.support.tiny import tiny_backbone
from tests.support.tiny_data import tiny_data
from training.__main__ import main
from training.corpus import Corpus, read_corpus
from training.encoder import new_encoder
from training.errors import ConfigError, DataError, Interrupted
from training.evaluation.encoders import load_checkpoint, open_encoder, torch_encode
from training.evaluation.sts import TASKS, read_sentence_pairs, spearman
from training.objectives.contrastive import embed_together
from training.objectives.cosine import cosine
from training.objectives.distillation import PairDistillationLoss, SimilarityDistillationLoss
from training.objectives.families import family_of
from training.objectives.teacher import teachers_embeddings
from training.recipe import (
    BackboneConfig,
    CorpusPart,
    Distillation,
    Objective,
    PairDistillation,
    PromptBERT,
    Recipe,
    SimCSE,
    SupervisedSimCSE,
    TrainingConfig,
)
from training.record import source_sha256
from training.train import PRECISION_VARIABLE, train
from training.trainer import MAX_GRADIENT_NORM, Trainer

ROOT = Path(__file__).parents[2]
QUICK = TrainingConfig(steps=7, batch_size=8, eval_every=2, learning_rate=1e-3)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def recipe(backbone: Path) -> Recipe:
    return Recipe(
        seed=3,
        backbone=BackboneConfig(name=str(backbone), max_seq_length=32),
        corpus=[CorpusPart(source="captions"), CorpusPart(source="wikisplit", limit=20)],
        objective=SimCSE(),
        training=QUICK,
        selector={"reduction": 4},
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def with_objective(recipe: Recipe, objective: Objective, source: str = "captions") -> Recipe:
    return replace(recipe, objective=objective, corpus=[CorpusPart(source=source)])


def every_objective(backbone: Path) -> list[Objective]:
    return [
        SimCSE(),
        SimCSE(projection=True),
        SupervisedSimCSE(),
        PromptBERT(),
        Distillation(teachers=[str(backbone)]),
        PairDistillation(teachers=[str(backbone), str(backbone)]),
    ]


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
    monkeypatch: pytest.MonkeyPatch,
    place: int,
    step: int,
) -> None:
    """Dropout, the order of the rows, the optimiser and a head go on where they were; between two
    looks at dev or at one. Every byte is the uninterrupted run's."""
    recipe = with_objective(recipe, every_objective(backbone)[place])
    train(recipe, data, tmp_path / "whole")
    original = Trainer.training_step

    def interrupted(self: Trainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.state.global_step == step - 1:
            signal.raise_signal(signal.SIGINT)
        loss: torch.Tensor = original(self, *args, **kwargs)
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", interrupted)
        with pytest.raises(Interrupted, match=f"step {step} of 7.*--resume"):
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
    assert train(recipe, data, tmp_path / "out").stopped
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


def test_a_best_step_that_cannot_be_loaded_stops_the_run(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would go on with the last weights; here nothing is saved as if it were best."""

    def broken(self: Trainer, *args: Any, **kwargs: Any) -> None:
        raise OSError("disk")

    monkeypatch.setattr(Trainer, "_load_from_checkpoint", broken)
    with pytest.raises(OSError, match="disk"):
        train(recipe, data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_scores_otherwise_than_in_training_is_not_kept(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "_load_best_model", lambda self: None)  # the last step's stay
    wild = replace(recipe, training=replace(QUICK, learning_rate=3e-3, steps=8))
    with pytest.raises(RuntimeError, match="the saved checkpoint scores"):
        train(wild, data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


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


@pytest.mark.parametrize(("kind", "distinct"), [("blocks", 3), ("features", 96)])
def test_a_static_gate_learns_weights_that_do_not_see_the_input(
    recipe: Recipe, data: Path, tmp_path: Path, kind: str, distinct: int
) -> None:
    """One weight per block, or one per block and feature, for whatever text; the control of X1."""
    train(replace(recipe, selector={"reduction": 4, "static": kind}), data, tmp_path / "out")
    gate = get_selector(load_encoder(tmp_path / "out")).spatial_selection
    assert gate is not None
    bias = gate.expand.bias.detach()
    assert len(set(bias.tolist())) == distinct
    one, two = gate(torch.zeros(32), 3), gate(torch.full((32,), 9.0), 3)
    assert torch.equal(one, two)


def test_a_gate_can_start_near_the_last_block(recipe: Recipe) -> None:
    encoder = new_encoder(replace(recipe, selector={"reduction": 4, "initial_bias": 3.0}))
    gate = get_selector(encoder).spatial_selection
    assert gate is not None
    weights = gate(torch.zeros(32), 3).mean(-1)
    np.testing.assert_allclose(weights.detach(), [0.2237, 0.2237, 0.5527], atol=1e-3)


def test_a_frozen_backbone_does_not_move(recipe: Recipe, data: Path, tmp_path: Path) -> None:
    recipe = replace(recipe, training=replace(QUICK, freeze_backbone=True))
    untrained = new_encoder(recipe)
    train(recipe, data, tmp_path / "out")
    trained = load_encoder(tmp_path / "out")
    for name, value in untrained[0].state_dict().items():
        assert torch.equal(trained[0].state_dict()[name], value), name
    expand = "spatial_selection.expand.weight"
    assert not torch.equal(trained[1].state_dict()[expand], untrained[1].state_dict()[expand])


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


def test_gradients_in_pieces_are_those_of_the_whole_batch(recipe: Recipe, data: Path) -> None:
    """GradCache (arXiv 2101.06983): the same loss and gradients, a few rows in memory at a time."""
    texts: list[Any] = [*read_sentence_pairs(data / "sts" / "stsb-dev.tsv").first[:8]]
    seen = []
    for pieces in (0, 3):
        torch.manual_seed(recipe.seed)
        pieced = replace(recipe, training=replace(QUICK, mini_batch_size=pieces))
        encoder = new_encoder(pieced)
        loss = family_of(pieced).make_loss(encoder, pieced, Corpus({}, ""))
        encoder.eval()  # the two ways would draw other dropout masks
        columns = [encoder.preprocess(texts), encoder.preprocess(texts[::-1])]
        value = loss(columns, torch.zeros(8))
        value.backward()
        grads = [p.grad for p in encoder.parameters() if p.grad is not None]
        seen.append((value.item(), torch.cat([grad.flatten() for grad in grads])))
    assert seen[0][0] == pytest.approx(seen[1][0], rel=1e-5)
    torch.testing.assert_close(seen[0][1], seen[1][1], rtol=1e-3, atol=1e-5)


def test_columns_in_one_pass_are_embedded_as_they_are_alone(recipe: Recipe) -> None:
    """Of different lengths too: what pads the shorter column changes nothing."""
    encoder = new_encoder(recipe)
    texts: list[list[Any]] = [["a cat", "two dogs"], ["the old man plays the guitar", "he reads"]]
    columns = [encoder.preprocess(column) for column in texts]
    together = embed_together(encoder, columns, encoder.tokenizer.pad_token_id)
    for column, embeddings in zip(texts, together, strict=True):
        np.testing.assert_allclose(embeddings.detach(), encoder.encode(column), atol=1e-5)


def test_cosines_of_the_loss_keep_their_digits_under_bfloat16() -> None:
    """Over a temperature of 0.05, bfloat16's rounding is as large as a tuned encoder's loss."""
    rows = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    exact = cosine(rows, rows + 0.05)
    with torch.autocast("cpu", torch.bfloat16):
        assert (cos_sim(rows, rows + 0.05) - exact).abs().max() > 1e-4, "the library's does not"
        torch.testing.assert_close(cosine(rows, rows + 0.05), exact, rtol=0, atol=1e-6)


def test_distillation_follows_the_teacher_by_hand(recipe: Recipe, backbone: Path) -> None:
    """The mean over rows of KL(teacher || student) over the other rows, and InfoNCE beside it."""
    objective = Distillation(
        teachers=["unused"],
        temperature=0.1,
        teacher_temperature=0.2,
        weight=2,
        contrastive_weight=0.5,
    )
    encoder = new_encoder(recipe)
    teacher = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    loss = SimilarityDistillationLoss(encoder, objective, teacher, gather=False)
    rows = torch.tensor([4, 0, 7])
    columns = [encoder.preprocess(["a cat", "two dogs", "he reads"]) for _ in range(2)]
    student = torch.from_numpy(encoder.encode(["a cat", "two dogs", "he reads"]))
    ours = cos_sim(student, student).double().numpy() / 0.1
    guide = cos_sim(teacher[rows], teacher[rows]).double().numpy() / 0.2
    expected = 0.0
    for row in range(3):
        others = [other for other in range(3) if other != row]
        p, q = (np.exp(m[row, others]) / np.exp(m[row, others]).sum() for m in (guide, ours))
        contrast = np.log(np.exp(ours[row]).sum()) - ours[row, row]
        expected += (2 * (p * np.log(p / q)).sum() + 0.5 * contrast) / 3
    assert loss(columns, rows).item() == pytest.approx(expected, rel=1e-4)


def test_pair_distillation_is_the_squared_error_of_cosines_by_hand(
    recipe: Recipe, backbone: Path
) -> None:
    """Over the two texts of a row, and over every two texts; and no dropout blurs it."""
    objective = PairDistillation(teachers=[str(backbone)])
    encoder = new_encoder(with_objective(recipe, objective)).train()
    teacher = torch.randn(5, 2, 7, generator=torch.Generator().manual_seed(0))
    loss = PairDistillationLoss(encoder, teacher, gather=False)
    rows = torch.tensor([3, 1])
    texts = [("a cat", "a small cat sleeps"), ("two dogs", "he reads")]
    columns = [encoder.preprocess(list(column)) for column in zip(*texts, strict=True)]
    flat = [text for row in texts for text in row]
    student = torch.from_numpy(encoder.encode(flat))
    guide = teacher[rows].flatten(0, 1)
    errors = (cos_sim(student, student) - cos_sim(guide, guide)).square().double().numpy()
    related = (errors[0, 1] + errors[2, 3]) / 2
    everything = errors[~np.eye(4, dtype=bool)].mean()
    encoder.train()
    assert loss(columns, rows).item() == pytest.approx(related + everything, rel=1e-4)


def test_two_teachers_are_the_mean_of_their_cosines(
    backbone: Path, data: Path, tmp_path: Path
) -> None:
    """Each counts alike, however long its vectors; what was computed is read back the next time."""
    wider = tiny_backbone(tmp_path / "wider", width=64, seed=5)
    corpus = read_corpus(data / "corpus", [CorpusPart(source="captions", limit=9)], kind="texts")
    names = [str(backbone), str(wider)]
    both = teachers_embeddings(names, corpus, tmp_path / "cache")
    alone = [torch.from_numpy(open_encoder(name)(corpus.texts())) for name in names]
    expected = (cos_sim(alone[0], alone[0]) + cos_sim(alone[1], alone[1])) / 2
    torch.testing.assert_close(cos_sim(both[:, 0], both[:, 0]), expected, rtol=0, atol=1e-5)
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert torch.equal(teachers_embeddings(names, corpus, tmp_path / "cache"), both)
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("objective", ["supervised", "distillation", "pair_distillation"])
def test_two_processes_share_a_batch_as_if_they_were_one(
    backbone: Path, data: Path, tmp_path: Path, objective: str
) -> None:
    """2 x 8 rows under torchrun give the gradients of 1 x 16: negatives come from both."""
    still = shutil.copytree(backbone, tmp_path / "still")
    config = json.loads((still / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (still / "config.json").write_text(json.dumps(config))
    teacher = f', teachers = ["{still}"]' if "distillation" in objective else ""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f"""seed = 3
        backbone = {{ name = "{still}", max_seq_length = 32 }}
        selector = {{ reduction = 4 }}
        corpus = [{{ source = "captions" }}]
        objective = {{ name = "{objective}"{teacher} }}
        training = {{ steps = 1, batch_size = 16, eval_every = 1 }}"""
    )
    gradients = []
    for processes in (1, 2):
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        out = tmp_path / f"out{processes}"
        arguments = [str(recipe), str(data), str(out), f"{out}.pt"]
        done = subprocess.run(
            [sys.executable, *launch, "-m", "tests.support.gradients_of_two", *arguments],
            cwd=ROOT,
            env={key: os.environ[key] for key in ("PATH", "HOME")},  # nothing of earlier runs
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert (out / "training.json").is_file()
        gradients.append(torch.load(f"{out}.pt"))
    one, two = gradients
    assert one.keys() == two.keys()
    assert any("spatial_selection" in name for name in one)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-3, atol=1e-6, msg=name)


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


def test_a_batch_that_processes_cannot_share_is_refused(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="batch_size = 8 cannot be shared by 3 processes"):
        train(recipe, data, tmp_path / "out")


def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """One sentence each, and no folder that a second try would trip over."""
    with pytest.raises(ConfigError, match="exists already"):
        train(recipe, data, tmp_path)
    no_gate = {"spatial_selection": "avg", "initial_bias": 1.0}
    frozen = replace(QUICK, freeze_backbone=True)
    pieces = replace(QUICK, mini_batch_size=4)
    for bad, says in (
        (replace(recipe, selector={"num_blocks": 9}), "num_blocks is 9"),
        (replace(recipe, selector=no_gate), "need a gate with biases"),
        (replace(recipe, selector=None, training=frozen), "nothing to train"),
        (
            replace(recipe, objective=PromptBERT(templates=["{}", "[MASK]"])),
            r"^The template '{}' must have one {} for the sentence",
        ),
        (
            replace(recipe, objective=SimCSE(projection=True), training=pieces),
            "mini_batch_size = 4",
        ),
    ):
        with pytest.raises(ConfigError, match=says):
            train(bad, data, tmp_path / "out")
    big = replace(recipe, training=replace(QUICK, batch_size=64))
    with pytest.raises(DataError, match="captions gave 60 rows, fewer than a batch of 64"):
        train(big, data, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_help_imports_no_training_library() -> None:
    """So that help is instant."""
    code = (
        "import sys; sys.argv = ['s2sent-train', 'fit', '--help']\n"
        "from training.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--data" in done.stdout


def test_the_commands_fit_and_score(
    recipe: Recipe, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run from the command line leaves a checkpoint that evaluate puts into its table."""
    path = tmp_path / "recipe.toml"
    path.write_text(
        f"""seed = 3\nselector = {{ reduction = 4 }}
        backbone = {{ name = "{recipe.backbone.name}", max_seq_length = 32 }}
        corpus = [{{ source = "wikisplit" }}, {{ source = "captions" }}]
        objective = {{ name = "simcse" }}
        training = {{ steps = 4, batch_size = 8, eval_every = 2 }}"""
    )
    arguments = [str(path), "--data", str(data), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="0"):
        main(["fit", *arguments])
    tasks = tmp_path / "sts"
    tasks.mkdir()
    for file in TASKS.values():
        shutil.copy(data / "sts" / "stsb-dev.tsv", tasks / file)
    with pytest.raises(SystemExit, match="0"):
        main(["evaluate", str(tmp_path / "out"), "--data", str(tmp_path)])
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith("|  | STS12 |")
    assert table[2].startswith(f"| {tmp_path / 'out'} |")
    assert len(set(table[2].split("|")[2:-1])) == 1  # seven copies of one task, and their mean


def test_a_mistake_on_the_command_line_is_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["none.toml", "--data", str(tmp_path), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="2"):
        main(["fit", *arguments])
    assert capsys.readouterr().err.startswith("s2sent-train: none.toml cannot be read")
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", str(tmp_path), "--data", str(tmp_path), "--record"])
    assert capsys.readouterr().err.startswith(f"s2sent-train: {tmp_path / 'manifest.json'}")
    with pytest.raises(SystemExit, match="2"):
        main(["export", "pypi:unheard-of", str(tmp_path / "out")])
    assert "No package is known for the backbone" in capsys.readouterr().err
