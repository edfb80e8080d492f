"""JTCSE: every term against numbers by hand, and the side branch against its equation."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from s2sent.model.network.twin_encoder import TOWERS
from s2sent.model.network.twins import get_twins, is_twin_checkpoint, load_twin_encoder
from s2sent.training.errors import ConfigError, DataError, EncoderError, Interrupted
from s2sent.training.files.record import write_record
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.fit.train import train
from s2sent.training.objectives.jtcse import (
    LEAST_COSINE,
    CrossAttention,
    JTCSELoss,
    jtcse_loss,
    modulus_constraint,
    nce,
)
from s2sent.training.recipe.objectives import JTCSE
from s2sent.training.recipe.recipe import BackboneConfig, CorpusPart, Recipe
from tests.support.interruption import interrupted_at
from tests.support.tiny import tiny_backbone
from tests.support.tiny_data import tiny_data, write_table
from tests.support.tiny_recipes import QUICK
from tests.support.tiny_twins import tiny_twins

TEXTS = [("a cat", "a small cat sleeps"), ("two dogs run", "dogs run in the street at night")]


def columns_of(twins: Any) -> list[dict[str, Any]]:
    """The two columns that the trainer makes of `TEXTS`."""
    return [twins.preprocess(list(column)) for column in zip(*TEXTS, strict=True)]


def assert_either_way(loss: JTCSELoss, columns: list[dict[str, Any]], given: list[Tensor]) -> None:
    """Within a dozen draws the loss has both the value with the swap and the one without."""
    torch.manual_seed(0)
    found = [loss([dict(c) for c in columns], torch.zeros(2)).item() for _ in range(12)]
    for swapped in (False, True):
        expected = jtcse_loss(given, temperature=0.05, swapped=swapped).item()
        near = [value for value in found if value == pytest.approx(expected, rel=1e-4)]
        assert 0 < len(near) < len(found)


def rows(*angles: float, length: float = 1.0) -> Tensor:
    """Vectors [n, 2] at these angles in degrees."""
    radians = torch.tensor(angles, dtype=torch.float64) * math.pi / 180
    return length * torch.stack([radians.cos(), radians.sin()], dim=1)


def test_nce_by_hand() -> None:
    """Partners are at cosines of 1/2 and sqrt(3)/2, all others at 0, -1/2 or -sqrt(3)/2."""
    asking = rows(0, 60, 90, 120)
    half, root = 0.5, math.sqrt(3) / 2
    candidates = [[half, 0, -half], [half, root, half], [0, root, root], [-half, half, root]]
    targets = [half, half, root, root]
    expected = sum(
        math.log(sum(math.exp(value / 0.5) for value in row)) - target / 0.5
        for row, target in zip(candidates, targets, strict=True)
    )
    found = nce(asking, asking, 0.5)
    assert found.item() == pytest.approx(expected / 4, rel=1e-6)


def test_nce_of_two_towers_leaves_a_row_itself_out_too() -> None:
    """The other tower's vector of the same text is no candidate, however near it is."""
    asking, answering = rows(0, 90), rows(0, 60)
    assert nce(asking, answering, 0.05).item() == pytest.approx(0, abs=1e-6)
    moved = answering.clone().requires_grad_()
    torch.autograd.backward(nce(rows(0, 30, 70, 90), torch.cat([moved, rows(80, 130)]), 0.5))
    assert moved.grad is not None
    assert moved.grad.abs().max() > 0


def test_the_modulus_constraint_by_hand() -> None:
    """Two pairs: a cosine of 1/2 with moduli 3 and 1 apart by 2, and a cosine of 1."""
    h_a, h_b = rows(0, 45, 90, 45), rows(45, 60, 45, 90)
    p_a = torch.tensor([[3.0, 0.0], [9.0, 9.0], [2.0, 0.0], [9.0, 9.0]])
    p_b = torch.tensor([[9.0, 9.0], [1.0, 0.0], [9.0, 9.0], [0.0, 2.0]])
    first = -math.log(0.5) * (2 / (3 + 1)) / 2
    found = modulus_constraint(h_a, h_b, p_a, p_b)
    assert found.item() == pytest.approx(first / 2, rel=1e-5)  # -log 1 removes the second pair
    # The other way round the vectors are (9, 9) and (9, 9), whose moduli agree.
    assert modulus_constraint(h_b, h_a, p_b, p_a).item() == pytest.approx(0, abs=1e-6)


def test_a_cosine_that_is_not_positive_is_a_constant_factor() -> None:
    """The value is -log 1e-4 times the modulus; no gradient reaches h, and p has one."""
    h_a, h_b = rows(0, 0).requires_grad_(), rows(0, 120).requires_grad_()
    p_a, p_b = rows(0, 0, length=3).requires_grad_(), rows(0, 0).requires_grad_()
    found = modulus_constraint(h_a, h_b, p_a, p_b)
    assert found.item() == pytest.approx(-math.log(LEAST_COSINE) * 0.25, rel=1e-5)
    torch.autograd.backward(found)
    for of_h in (h_a, h_b):
        assert of_h.grad is not None
        assert of_h.grad.abs().max() == 0
    # d/dx of (x - 1) / (x + 1) / 2 at x = 3 is 1 / 16.
    assert p_a.grad is not None
    assert p_a.grad[0, 0].item() == pytest.approx(-math.log(LEAST_COSINE) / 16, rel=1e-5)


def test_a_pair_at_cosine_1_has_no_modulus_gradient() -> None:
    h, p = rows(30, 30), rows(0, 0, length=3).requires_grad_()
    torch.autograd.backward(modulus_constraint(h, h, p, rows(0, 0)))
    assert p.grad is not None
    np.testing.assert_allclose(p.grad, 0, atol=1e-6)


@pytest.mark.parametrize("crossed", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_the_loss_is_the_sum_of_its_terms(crossed: bool, swapped: bool) -> None:
    """All weights are 1; the swap exchanges who asks in both terms of L_icnce and nowhere else."""
    generator = torch.Generator().manual_seed(0)
    h_a, h_b, p_a, p_b, c_a, c_b = torch.randn(6, 4, 5, generator=generator).unbind()
    expected = nce(h_a, h_a, 0.1) + nce(h_b, h_b, 0.1)
    expected = expected + (nce(h_b, h_a, 0.1) if swapped else nce(h_a, h_b, 0.1))
    if crossed:
        expected = expected + (nce(c_b, c_a, 0.1) if swapped else nce(c_a, c_b, 0.1))
    expected = expected + modulus_constraint(h_a, h_b, p_a, p_b)
    expected = expected + modulus_constraint(h_b, h_a, p_b, p_a)
    given = [h_a, h_b, p_a, p_b, *((c_a, c_b) if crossed else ())]
    found = jtcse_loss(given, temperature=0.1, swapped=swapped)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert nce(h_a, h_b, 0.1).item() != pytest.approx(nce(h_b, h_a, 0.1).item(), rel=1e-3)


def test_the_loss_of_texts_is_that_of_the_towers_vectors(tmp_path: Path) -> None:
    """Whichever way the coin falls; rows 2i and 2i + 1 are a pair's texts."""
    twins = tiny_twins(tmp_path)
    loss = JTCSELoss(twins, JTCSE(second_tower="unused", cross_attention=False), gather=False)
    columns = columns_of(twins)
    flat = [text for row in TEXTS for text in row]
    h_a, h_b = (torch.from_numpy(tower.encode(flat)) for tower in get_twins(twins).towers)
    assert_either_way(loss, columns, [h_a, h_b, h_a, h_b])


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "distilbert"])
def test_the_side_branch_is_one_towers_attention_over_the_others_values(
    tmp_path: Path, family: str
) -> None:
    """c_A of a text by hand, whatever it is padded to; the towers' own vectors stay as they are."""
    twins: Any = tiny_twins(tmp_path, family, selector=False)
    towers = get_twins(twins).towers
    branch = CrossAttention(towers, JTCSE(second_tower="unused", num_ca_layers=2))
    texts = ["a cat", "two dogs run in the street at night"]
    batch = twins.preprocess(texts)
    before = twins(dict(batch))["sentence_embedding"]
    with torch.no_grad(), branch.watching() as attended:
        after = twins(dict(batch))["sentence_embedding"]
    torch.testing.assert_close(after, before)
    crossed, _ = branch.cross(attended, batch["attention_mask"])
    length = int(batch["attention_mask"][0].sum())
    expected = torch.zeros(32)
    for block in (1, 3):  # blocks 2 and 4, at equal steps
        query, key = (_projected(towers[0], texts[0], block, kind)[:length] for kind in (0, 1))
        value = _projected(towers[1], texts[0], block, 2)[:length]
        for head in (slice(0, 16), slice(16, 32)):
            weights = (query[:, head] @ key[:, head].T / 4).softmax(-1)
            expected[head] += (weights @ value[:, head]).mean(0) / 2
    torch.testing.assert_close(crossed[0], expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def _projected(tower: Any, text: str, block: int, kind: int) -> Tensor:
    """Query, key or value [L, D] of one text in a block, from the state before it."""
    names = (("query", "q", "q_lin"), ("key", "k", "k_lin"), ("value", "v", "v_lin"))[kind]
    features = tower(tower.preprocess([text]))
    layers = [
        layer
        for name, layer in tower[0].named_modules()
        if name.rpartition(".")[2] in names and isinstance(layer, torch.nn.Linear)
    ]
    states: Tensor = layers[block](features["all_layer_embeddings"][block][0])
    return states


def test_with_a_first_token_the_modulus_is_the_poolers(tmp_path: Path) -> None:
    twins = tiny_twins(tmp_path, pooling="cls", selector=False)
    loss = JTCSELoss(twins, JTCSE(second_tower="unused", cross_attention=False), gather=False)
    columns = columns_of(twins)
    flat = [text for row in TEXTS for text in row]
    h, p = [], []
    for tower in get_twins(twins).towers:
        vectors = torch.from_numpy(tower.encode(flat))
        dense = tower[0].get_submodule("auto_model.pooler.dense")
        h.append(vectors)
        p.append(functional.linear(vectors, dense.weight, dense.bias).tanh())  # type: ignore[arg-type]  # a Linear has both
    assert_either_way(loss, columns, [*h, *p])


@pytest.fixture
def twins_recipe(recipe: Recipe, tmp_path: Path) -> Recipe:
    """A short run of two tiny towers with selectors."""
    tiny_twins(tmp_path / "towers")
    first, second = (str(tmp_path / "towers" / f"{name}.checkpoint") for name in TOWERS)
    return replace(
        recipe,
        backbone=BackboneConfig(name=first, max_seq_length=32),
        objective=JTCSE(second_tower=second, num_ca_layers=2),
        corpus=[CorpusPart(source="captions")],
        selector=None,
    )


def test_bad_towers_are_one_sentence_with_the_cure(
    twins_recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """Other width, other tokenizer, no checkpoint, too many blocks; and nothing is written."""

    def refused(second: Path, says: str, error: type[Exception] = ConfigError) -> None:
        objective = JTCSE(second_tower=str(second))
        with pytest.raises(error, match=says) as caught:
            train(replace(twins_recipe, objective=objective), data, tmp_path / "out")
        assert str(caught.value).count(". ") == 0

    tiny_twins(tmp_path / "roberta", "roberta")
    refused(tmp_path / "roberta" / "tower_a.checkpoint", "differ in their tokenizer.*train both")
    refused(tiny_backbone(tmp_path / "bare"), "bare is no checkpoint .*: train it first, with")
    second = twins_recipe.objective.second_tower  # type: ignore[union-attr]  # the fixture's
    refused(Path(second), "num_ca_layers = 6 is more than the 4 blocks.*: use at most 4")
    nowhere = BackboneConfig(name=str(tmp_path / "towers"), max_seq_length=32)
    with pytest.raises(EncoderError, match=r"has no config.json: name the folder"):
        train(replace(twins_recipe, backbone=nowhere), data, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_a_corpus_without_pairs_is_refused(twins_recipe: Recipe, tmp_path: Path) -> None:
    data = tiny_data(tmp_path / "data")
    (data / "corpus" / "lines.txt").write_text("a cat\n" * 9)
    triples = [("one", "two", "three"), *((f"a {n}", f"b {n}", f"c {n}") for n in range(9))]
    write_table(data / "corpus" / "triples.tsv", triples)
    for source, says in (("lines.txt", "needs pairs, a .tsv"), ("triples.tsv", "leave the third")):
        recipe = replace(twins_recipe, corpus=[CorpusPart(source=source)])
        with pytest.raises(DataError, match=says):
            train(recipe, data, data / "none")


def test_a_backbone_without_separate_projections_can_still_train_tncse(tmp_path: Path) -> None:
    """A fused projection has no query layer; the sentence names the option to set."""
    twins: Any = tiny_twins(tmp_path, selector=False)
    for tower in get_twins(twins).towers:
        for layer in tower[0].get_submodule("auto_model.encoder.layer").children():
            attention: Any = layer.get_submodule("attention.self")
            attention.fused = attention._modules.pop("query")
    with pytest.raises(ConfigError, match=r"bert has no separate query.*cross_attention = false"):
        JTCSELoss(twins, JTCSE(second_tower="unused", num_ca_layers=2), gather=False)


def test_the_record_tells_where_both_towers_came_from(
    twins_recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    first = twins_recipe.backbone.name
    second = twins_recipe.objective.second_tower  # type: ignore[union-attr]  # the fixture's
    for seed, tower in ((1, first), (2, second)):
        write_record(Path(tower), {"seed": seed, "backbone": {"name": "somewhere"}})
    outcome = train(twins_recipe, data, tmp_path / "out")
    assert outcome.record["backbone"] == {"name": "somewhere"}
    assert outcome.record["began_from"]["seed"] == 1
    assert outcome.record["second_tower"]["seed"] == 2
    assert is_twin_checkpoint(tmp_path / "out")
    assert [step for step, _ in outcome.curve] == [0, 2, 4, 6, 7]


def test_an_interrupted_run_resumes_to_the_same_towers(
    twins_recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """The coin that exchanges the towers falls as it would have."""
    train(twins_recipe, data, tmp_path / "whole")
    with interrupted_at(3), pytest.raises(Interrupted):
        train(twins_recipe, data, tmp_path / "out")
    train(twins_recipe, data, tmp_path / "out", resume=True)
    for tower in TOWERS:
        file = Path(tower, "model.safetensors")
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_the_selectors_of_towers_have_their_own_learning_rate(
    twins_recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """Adam's first step is the learning rate; both gates and both backbones move."""
    rates = replace(QUICK, steps=1, eval_every=1, learning_rate=1e-4, selector_learning_rate=1e-2)
    recipe = replace(twins_recipe, training=rates)
    before = new_encoder(recipe).state_dict()
    train(recipe, data, tmp_path / "out")
    after = load_twin_encoder(tmp_path / "out").state_dict()
    for tower in TOWERS:
        moved = {
            name: float((after[name] - before[name]).abs().max())
            for name in before
            if tower in name
        }
        gate = next(step for name, step in moved.items() if "expand.weight" in name)
        assert gate == pytest.approx(1e-2, rel=0.05)
        assert max(
            step for name, step in moved.items() if "spatial_selection" not in name
        ) == pytest.approx(1e-4, rel=0.05)


def test_what_towers_bring_is_refused_in_the_recipe(twins_recipe: Recipe) -> None:
    """A selector, a frozen backbone, another pooling."""
    with pytest.raises(ValueError, match="bring their selectors"):
        replace(twins_recipe, selector={"reduction": 4})
    for frozen in (replace(QUICK, freeze_backbone=True), replace(QUICK, freeze_blocks=1)):
        with pytest.raises(ValueError, match="leave freeze_backbone and freeze_blocks out"):
            replace(twins_recipe, training=frozen)
    cls = replace(twins_recipe.backbone, pooling="cls")
    with pytest.raises(ConfigError, match=r"pooling = 'cls', and .* pools by mean: leave it out"):
        new_encoder(replace(twins_recipe, backbone=cls))
