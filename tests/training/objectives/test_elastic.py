"""Elastic objectives: their terms against hand calculations, on a toy loss and on real ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from s2sent.model.export.int8.rounding import round_weights
from s2sent.model.network.encoder import get_selector, load_encoder
from s2sent.model.network.pooled import stopped_at
from s2sent.training.corpus import read_corpus
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.depths.embeddings import encode_exits
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.fit.train import train
from s2sent.training.objectives.contrastive import ContrastiveLoss
from s2sent.training.objectives.elastic import (
    ElasticLoss,
    Exits,
    Views,
    alignment,
    starbucks,
    two_dimensional,
)
from s2sent.training.objectives.from_recipe import make_loss
from s2sent.training.recipe.elastic import Elastic
from s2sent.training.recipe.objectives import Distillation, PromptBERT, SimCSE
from s2sent.training.recipe.recipe import CorpusPart, Recipe, recipe_from

ELASTIC = Elastic(depths=[2, 3], dimensions=[8, 16], align="cosine")
TEXTS = ["a cat", "two happy dogs", "he reads a red book"]


def some_exits(*depths: int, width: int = 6, seed: int = 0) -> Exits:
    generator = torch.Generator().manual_seed(seed)
    return {depth: [torch.randn(4, width, generator=generator).double()] for depth in depths}


def toy(views: Views) -> Tensor:
    """A loss that tells widths and values apart."""
    (view,) = views
    return view.square().sum() * view.shape[1]


@given(
    depths=st.lists(st.integers(1, 11), min_size=1, max_size=4, unique=True),
    dimensions=st.lists(st.integers(1, 5), max_size=3, unique=True),
)
@settings(max_examples=25)
def test_starbucks_is_full_and_the_mean_of_every_smaller_pair(
    depths: list[int], dimensions: list[int]
) -> None:
    exits = some_exits(*sorted(depths), 12)
    smaller = [
        float(toy([views[0][:, :width]]))
        for depth, views in exits.items()
        for width in (*dimensions, 6)
        if (depth, width) != (12, 6)
    ]
    expected = float(toy(exits[12])) + sum(smaller) / len(smaller)
    assert float(starbucks(exits, dimensions, toy)) == pytest.approx(expected)


def kl(target: Tensor, rows: Tensor) -> float:
    """The mean over rows of sum p log(p / q), p and q softmax distributions over features."""
    p, q = (np.exp(each.numpy()) for each in (target, rows))
    p, q = (each / each.sum(1, keepdims=True) for each in (p, q))
    return float((p * np.log(p / q)).sum(1).mean())


def test_2dmse_is_four_losses_and_the_divergence_of_the_drawn_depth() -> None:
    exits = some_exits(1, 2, 3)
    torch.manual_seed(0)
    depth, width = [1, 2][int(torch.randint(2, ()))], [2, 4][int(torch.randint(2, ()))]
    torch.manual_seed(0)
    found = float(two_dimensional(exits, [2, 4], toy))
    (full,), (drawn,) = exits[3], exits[depth]
    losses = [toy([full]), toy([drawn]), toy([full[:, :width]]), toy([drawn[:, :width]])]
    assert found == pytest.approx(float(sum(losses)) + kl(full, drawn), rel=1e-5)


def test_2dmse_draws_every_pair_and_teaches_both_sides() -> None:
    exits = {
        depth: [view.requires_grad_() for view in views]
        for depth, views in some_exits(1, 2, 3).items()
    }
    seen: list[int] = []

    def remember(views: Views) -> Tensor:
        seen.append(views[0].shape[1])
        return views[0].sum() * 0

    for _ in range(40):
        two_dimensional(exits, [2, 4], remember)
    assert {*seen} == {2, 4, 6}
    divergence = two_dimensional(exits, [2], lambda views: views[0].sum() * 0)
    (gradient,) = torch.autograd.grad(divergence, exits[3])
    assert gradient.abs().sum() > 0  # the teacher of the divergence is not detached


def test_alignment_pulls_the_exits_to_full_depth_and_not_back() -> None:
    exits = {
        depth: [view.requires_grad_() for view in views]
        for depth, views in some_exits(1, 2, 3).items()
    }
    (one,), (two,), (full,) = (views for views in exits.values())
    squared = ((one - full).square().mean() + (two - full).square().mean()) / 2
    found = alignment(exits, "squared").item()
    assert found == pytest.approx(squared.item(), rel=1e-5)
    apart = [1 - functional.cosine_similarity(each, full).mean() for each in (one, two)]
    cosine = alignment(exits, "cosine")
    assert cosine.item() == pytest.approx(sum(each.item() for each in apart) / 2, rel=1e-5)
    of_exit, of_full = torch.autograd.grad(cosine, [one, full], allow_unused=True)
    assert of_full is None
    assert of_exit.abs().sum() > 0


def elastic(recipe: Recipe, **options: Any) -> Recipe:
    return replace(recipe, elastic=replace(ELASTIC, **options))


@pytest.mark.parametrize("selector", [None, {"num_blocks": 3, "reduction": 4}])
@pytest.mark.parametrize("share", [False, True])
def test_each_depth_is_embedded_as_it_will_be_served(
    recipe: Recipe, selector: dict[str, object] | None, share: bool
) -> None:
    """From one pass, every exit's embeddings equal those of the encoder that stops there."""
    depths = [2, 3] if selector and not share else [3]
    shaped = replace(elastic(recipe, depths=depths, share_selector=share), selector=selector)
    encoder = new_encoder(shaped)
    base = ContrastiveLoss(encoder, 0.05, projection=False, gather=False)
    loss = ElasticLoss(encoder, base, shaped.elastic or ELASTIC, padding=0)
    with torch.no_grad():
        exits = loss.embed([encoder.preprocess([*TEXTS])])
    encoded = encode_exits(encoder, TEXTS, depths)
    for depth in depths:
        with stopped_at(encoder, depth):
            expected = encoder.encode(TEXTS)
        np.testing.assert_allclose(exits[depth][0], expected, atol=1e-5)
        np.testing.assert_allclose(encoded[depth], expected, atol=1e-5)
    np.testing.assert_allclose(encoded[4], encoder.encode(TEXTS), atol=1e-5)
    if selector:
        assert get_selector(encoder).config.exits == (() if share else tuple(depths))


def test_the_loss_of_a_real_objective_is_its_own_at_each_pair(recipe: Recipe) -> None:
    shaped = elastic(recipe)
    encoder = new_encoder(shaped).eval()
    base = ContrastiveLoss(encoder, 0.05, projection=False, gather=False)
    loss = ElasticLoss(encoder, base, ELASTIC, padding=0)
    columns = [encoder.preprocess([*TEXTS]), encoder.preprocess([*TEXTS])]
    exits = loss.embed(columns)

    def contrast(views: Views) -> Tensor:
        similar = functional.cosine_similarity(views[0][:, None], views[1][None], dim=-1) / 0.05
        return functional.cross_entropy(similar, torch.arange(3))

    expected = starbucks(exits, ELASTIC.dimensions, contrast) + alignment(exits, "cosine")
    found = loss(columns, torch.zeros(3)).item()
    assert found == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("mode", ["starbucks", "2dmse"])
def test_an_elastic_recipe_trains_each_exits_gate(
    recipe: Recipe, backbone: Path, data: Path, tmp_path: Path, mode: str
) -> None:
    """Also by distillation of one view; the step is chosen by the mean of the depths."""
    objective = Distillation(
        teachers=[str(backbone)], contrastive_weight=0, error_weight=4, dropout=False
    )
    training = replace(recipe.training, steps=4, warmup_steps=1, group_by_length=True)
    options: dict[str, Any] = {"mode": mode, "depths": [2, 3], "dimensions": [8]}
    shaped = replace(elastic(recipe, **options), objective=objective, training=training)
    torch.manual_seed(shaped.seed)
    before = get_selector(new_encoder(shaped)).state_dict()
    outcome = train(shaped, data, tmp_path / "out")
    encoder = load_encoder(tmp_path / "out")
    for name, value in get_selector(encoder).state_dict().items():
        assert not torch.equal(value, before[name]), name
    scores = outcome.record["dev"]["by_depth"]
    assert [*scores] == [2, 3, 4]
    assert outcome.dev == pytest.approx(sum(scores.values()) / 3, abs=0.01)
    assert recipe_from(outcome.record["recipe"], "record") == shaped


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"depths": [3, 2], "dimensions": []}, r"depths = \[3, 2\] must be rising numbers from 1"),
        ({"depths": [], "dimensions": [8]}, r"depths = \[\] must name at least one depth"),
        ({"depths": [2], "dimensions": [0, 8]}, "dimensions = .* rising numbers from 1"),
        ({"depths": [2], "dimensions": [], "mode": "2dmse"}, "draws a dimension: name at least"),
        ({"depths": [2], "dimensions": [8], "mode": "3d"}, "choose one of starbucks, 2dmse"),
        ({"depths": [2], "dimensions": [8], "align": "l1"}, "choose one of none, squared, cosine"),
        (
            {"depths": [2], "dimensions": [8], "align_weight": 0},
            "align_weight = 0.0 must be above 0",
        ),
        ({"depths": [2], "dimensions": [8], "project_rank": 4}, "above 0 with project = true"),
        ({"depths": [2], "dimensions": [8], "project_blocks": True}, "needs project = true"),
        (
            {"depths": [2], "dimensions": [8], "share_selector": True, "exits_only": True},
            "exits_only = true trains the gates of exits",
        ),
    ],
)
def test_a_table_that_means_nothing_is_refused(
    recipe: Recipe, table: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe_from({**recipe.as_table(), "elastic": table}, "recipe.toml")


def test_an_objective_that_cannot_be_elastic_is_refused(recipe: Recipe) -> None:
    with pytest.raises(ValueError, match="elastic takes the objectives simcse, supervised, .* not"):
        replace(recipe, objective=PromptBERT(), elastic=ELASTIC)
    with pytest.raises(ValueError, match="projection = true would mix"):
        replace(recipe, objective=SimCSE(projection=True), elastic=ELASTIC)
    with pytest.raises(ValueError, match=r"are part of a selector: add \[selector\]"):
        replace(recipe, selector=None, elastic=replace(ELASTIC, project=True))
    alone = replace(ELASTIC, exits_only=True)
    with pytest.raises(ValueError, match=r"trains parts of a selector: add \[selector\]"):
        replace(recipe, selector=None, elastic=alone)
    for option in ({"round_matrices": True}, {"freeze_blocks": 2}):
        training = replace(recipe.training, **option)
        with pytest.raises(ValueError, match="leave lora_rank, round_matrices, freeze_blocks out"):
            replace(recipe, elastic=alone, training=training)


def test_depths_and_dimensions_the_encoder_lacks_are_refused(recipe: Recipe, data: Path) -> None:
    with pytest.raises(ConfigError, match=r"depth 4 cannot be an exit: .* from 1 to 3"):
        new_encoder(elastic(recipe, depths=[3, 4]))
    with pytest.raises(ConfigError, match="exits has 1, which cannot have a gate"):
        new_encoder(elastic(recipe, depths=[1, 2]))
    with pytest.raises(ConfigError, match=r"depth 2 cannot be an exit: .* from 3 to 3"):
        new_encoder(elastic(recipe, depths=[2], share_selector=True))
    shaped = elastic(recipe, dimensions=[8, 32])
    corpus = read_corpus(data / "corpus", [CorpusPart(source="captions")], kind="texts")
    with pytest.raises(ConfigError, match=r"dimensions has 32, and .* 32 wide: .* from 1 to 31"):
        make_loss(new_encoder(elastic(recipe, depths=[3])), shaped, corpus)
    drawn = elastic(recipe, depths=[3], mode="2dmse")
    with pytest.raises(ConfigError, match="'2dmse' draws sizes in each process, and torchrun"):
        make_loss(new_encoder(drawn), drawn, corpus, gather=True)


def test_rounded_matrices_stay_on_the_grid_while_the_rest_is_trained(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """So an export to weight-int8 stores the checkpoint's own weights, also those behind exits."""
    training = replace(recipe.training, steps=2, round_matrices=True)
    shaped = replace(elastic(recipe, project=True), training=training)
    before = new_encoder(shaped)[0].state_dict()
    train(shaped, data, tmp_path / "out")
    after = load_encoder(tmp_path / "out")
    for name, value in after[0].state_dict().items():
        if "pooler" not in name:  # the mean of the tokens leaves it without a gradient
            rounded = value.ndim == 2 and value.numel() >= 1024
            assert torch.equal(value, before[name]) == rounded, name
    weights = after.state_dict()
    assert any("projections" in name for name in weights)
    for name, value in round_weights(after).state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-6, atol=0)
