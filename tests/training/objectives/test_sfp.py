"""CSE-SFP: what is contrasted with what, in one forward, and training it with LoRA or without."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from s2sent.model.network.encoder import find_template, get_selector, load_encoder
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.encoders import open_encoder
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.fit.train import train
from s2sent.training.loop.low_rank import merge_updates
from s2sent.training.objectives.sfp import TwoStageLoss
from s2sent.training.recipe.objectives import SFP
from s2sent.training.recipe.recipe import BackboneConfig, CorpusPart, Recipe
from tests.support.tiny import tiny_decoder
from tests.support.tiny_data import SENTENCES
from tests.support.tiny_recipes import QUICK

TEXTS, OTHERS = SENTENCES[:4], SENTENCES[30:34]
LORA = replace(QUICK, lora_rank=4, learning_rate=1e-2)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_decoder(tmp_path_factory.mktemp("decoder") / "tiny")


@pytest.fixture(scope="module")
def recipe_of(decoder: Path) -> Callable[..., Recipe]:
    def make(**options: Any) -> Recipe:
        backbone: dict[str, Any] = {"template": "sfp", "pooling": "last_token"}
        backbone |= options.pop("backbone", {})
        recipe = Recipe(
            seed=3,
            backbone=BackboneConfig(name=str(decoder), max_seq_length=32, **backbone),
            corpus=[CorpusPart(source="captions")],
            objective=SFP(),
            training=QUICK,
            selector={"preset": "decoder", "reduction": 4},
        )
        return replace(recipe, **options)

    return make


@pytest.fixture(scope="module")
def encoder_of(recipe_of: Callable[..., Recipe]) -> Callable[..., Any]:
    @cache
    def build(pooling: str) -> Any:
        torch.manual_seed(0)
        return new_encoder(recipe_of(backbone={"pooling": pooling}))

    return build


@torch.no_grad()
def stages(encoder_of: Callable[..., Any], texts: list[str]) -> list[np.ndarray[Any, Any]]:
    """Rep2 and Rep1 of texts, by the encoders that embed each of them alone."""
    found = []
    for pooling in ("last_token", "rep1"):
        encoder = encoder_of(pooling)
        get_selector(encoder).load_state_dict(get_selector(encoder_of("rep1")).state_dict())
        vectors = encoder.encode(texts)
        found.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return found


def info_nce(anchors: np.ndarray[Any, Any], others: np.ndarray[Any, Any]) -> float:
    logits = anchors @ others.T / 0.05
    return float((np.log(np.exp(logits).sum(1)) - logits.diagonal()).mean())


def test_one_forward_gives_what_two_encoders_give(encoder_of: Callable[..., Any]) -> None:
    """Rep2 of each text against Rep1 of all, each as if embedded by itself."""
    rep2, rep1 = stages(encoder_of, TEXTS)
    loss = TwoStageLoss(encoder_of("last_token"))
    column = encoder_of("last_token").preprocess(TEXTS, task="view_1")
    found = loss([column], torch.empty(0))
    assert found.item() == pytest.approx(info_nce(rep2, rep1), abs=1e-4)


def test_pairs_and_hard_negatives_are_rep1(encoder_of: Callable[..., Any]) -> None:
    rep2, _ = stages(encoder_of, TEXTS)
    _, rep1 = stages(encoder_of, [*OTHERS, *SENTENCES[50:54]])
    encoder = encoder_of("last_token")
    loss = TwoStageLoss(encoder)
    columns = [
        encoder.preprocess(texts, task="view_1") for texts in (TEXTS, OTHERS, SENTENCES[50:54])
    ]
    found = loss(columns, torch.empty(0))
    assert found.item() == pytest.approx(info_nce(rep2, rep1), abs=1e-4)
    found.backward()
    for parameter in (*encoder[0].parameters(), *get_selector(encoder).parameters()):
        assert parameter.grad is not None
        parameter.grad = None


@pytest.mark.parametrize("examples", ["texts", "related"])
def test_it_trains_and_the_checkpoint_keeps_its_template(
    recipe_of: Callable[..., Recipe], data: Path, tmp_path: Path, examples: Any
) -> None:
    recipe = recipe_of(
        objective=SFP(examples=examples), backbone={"pooling": "rep1", "clean_up": "statement"}
    )
    outcome = train(recipe, data, tmp_path / "out")
    assert outcome.step > 0
    template = find_template(load_encoder(tmp_path / "out"))
    assert template is not None
    assert (template.read, template.clean_up) == (-1, "statement")
    assert np.isfinite(open_encoder(str(tmp_path / "out"))(TEXTS)).all()


def test_low_rank_updates_are_merged_into_the_backbone(
    recipe_of: Callable[..., Recipe], data: Path, tmp_path: Path
) -> None:
    """`train` itself checks that the merged checkpoint scores as the updates did."""
    recipe = recipe_of(training=LORA)
    outcome = train(recipe, data, tmp_path / "out")
    assert outcome.step > 0
    before, after = new_encoder(recipe_of()), load_encoder(tmp_path / "out")
    changed = {
        name
        for name, value in before[0].state_dict().items()
        if not torch.equal(after[0].state_dict()[name], value)
    }
    assert set(before[0].state_dict()) == set(after[0].state_dict())
    assert changed == {name for name in changed if name.endswith("_proj.weight")}
    assert len(changed) == 4 * 7  # every linear layer of every block


def test_low_rank_updates_train_alone_and_begin_without_effect(
    recipe_of: Callable[..., Recipe],
) -> None:
    torch.manual_seed(0)
    plain = new_encoder(recipe_of())
    torch.manual_seed(0)
    encoder = new_encoder(recipe_of(training=LORA))
    np.testing.assert_allclose(encoder.encode(TEXTS), plain.encode(TEXTS), atol=1e-5)
    trained = {name for name, value in encoder[0].named_parameters() if value.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    merge_updates(encoder)
    assert not any("lora_" in name for name in encoder.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": {"template": "prompteol"}}, r"has no \[REP1\], where rep1 ends: add it"),
        ({"backbone": {"template": "sfpp"}}, "has no {} for the sentence and is none of prompteol"),
        ({"selector": {"reduction": 4}}, "With squeeze_scope = 'all' the gate of rep1 sees"),
    ],
)
def test_what_would_leak_or_has_no_stages_is_refused(
    recipe_of: Callable[..., Recipe], data: Path, tmp_path: Path, options: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(recipe_of(**options), data, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda make: make(backbone={"template": ""}), "reads a token of a template: set template"),
        (
            lambda make: make(backbone={"template": "", "pooling": "mean"}),
            "sfp reads a template in two stages",
        ),
        (lambda make: make(training=replace(LORA, freeze_backbone=True)), "leave one of them out"),
        (
            lambda make: make(training=replace(LORA, lora_rank=-1)),
            "lora_rank = -1 must be at least 0",
        ),
    ],
)
def test_recipes_that_contradict_themselves_are_refused(
    recipe_of: Callable[..., Recipe], change: Callable[..., Recipe], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        change(recipe_of)
