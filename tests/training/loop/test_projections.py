"""Projections of exits: where they begin, and that training goes on from there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from s2sent.model.network.encoder import get_selector, load_encoder
from s2sent.training.errors import ConfigError, Interrupted
from s2sent.training.evaluation.depths.embeddings import encode_exits
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.fit.train import train
from s2sent.training.loop.projections import least_squares, start_projections
from s2sent.training.recipe.elastic import Elastic
from s2sent.training.recipe.recipe import Recipe
from tests.support.interruption import interrupted_at

LAST = {"num_blocks": 1, "spatial_selection": "avg"}
TEXTS = [f"text {number} of {number % 7} and {number % 5} more" for number in range(300)]


def elastic(recipe: Recipe, *, project: bool, **options: Any) -> Recipe:
    sizes = Elastic(depths=[2, 3], dimensions=[8], project=project, **options)
    return replace(recipe, elastic=sizes)


def test_least_squares_finds_the_matrix_that_made_the_target() -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(500, 6)).astype(np.float32)
    matrix = draw.normal(size=(6, 6)).astype(np.float32)
    np.testing.assert_allclose(least_squares(rows, rows @ matrix), matrix, atol=0.01)
    noise = draw.normal(size=(500, 6)).astype(np.float32)
    found = least_squares(rows, rows @ matrix + noise)
    left = np.square(rows @ found - rows @ matrix - noise).sum()
    for other in (found * 1.05, found * 0.95, found + 0.05 * matrix):
        assert np.square(rows @ other - rows @ matrix - noise).sum() > left


@pytest.mark.parametrize("blocks", [False, True])
def test_projections_begin_nearer_to_full_depth_and_leave_it_as_it_is(
    recipe: Recipe, *, blocks: bool
) -> None:
    encoder = new_encoder(elastic(recipe, project=True, project_blocks=blocks))
    before = encode_exits(encoder, TEXTS, [2, 3])
    start_projections(encoder, TEXTS)
    after = encode_exits(encoder, TEXTS, [2, 3])
    np.testing.assert_array_equal(before[4], after[4])
    for depth in (2, 3):
        assert cosines(after[depth], after[4]).mean() > cosines(before[depth], before[4]).mean()


def test_a_matrix_begins_nearer_where_it_reads_all_blocks(recipe: Recipe) -> None:
    """Least squares over more inputs: the error over the texts themselves cannot be larger."""
    errors = {}
    for blocks in (False, True):
        encoder = new_encoder(elastic(recipe, project=True, project_blocks=blocks))
        start_projections(encoder, TEXTS)
        exits = encode_exits(encoder, TEXTS, [2, 3])
        errors[blocks] = [1 - cosines(exits[depth], exits[4]).mean() for depth in (2, 3)]
    assert all(more < less for more, less in zip(errors[True], errors[False], strict=True))


def test_a_recipe_that_adds_blocks_to_the_matrices_keeps_gates_and_fits_these_anew(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    train(elastic(recipe, project=True), data, tmp_path / "fused")
    name = replace(recipe.backbone, name=str(tmp_path / "fused"))
    added = replace(elastic(recipe, project=True, project_blocks=True), backbone=name)
    before = get_selector(load_encoder(tmp_path / "fused")).state_dict()
    after = get_selector(new_encoder(added)).state_dict()
    assert {*before} == {*after}
    for key, value in before.items():
        if key.startswith("projections."):
            assert torch.equal(after[key], torch.eye(*after[key].shape))
            assert len(after[key]) == len(value) * int(key[-1])  # blocks of depths 2 and 3
        else:
            assert torch.equal(after[key], value), key
    train(added, data, tmp_path / "blocks")
    again = replace(added, backbone=replace(name, name=str(tmp_path / "blocks")))
    for depth, matrix in get_selector(load_encoder(tmp_path / "blocks")).projections.items():
        assert torch.equal(get_selector(new_encoder(again)).projections[depth], matrix)


def test_exits_are_trained_alone(recipe: Recipe, data: Path, tmp_path: Path) -> None:
    """Full depth keeps every weight it reads; each exit's gate and matrix moves."""
    exits_only = elastic(recipe, project=True, project_blocks=True, exits_only=True)
    torch.manual_seed(recipe.seed)  # of the first weights, as `train` does
    start = new_encoder(exits_only)
    start_projections(start, TEXTS)
    train(exits_only, data, tmp_path / "out")
    trained = load_encoder(tmp_path / "out")
    moved = {
        name
        for name, value in trained.state_dict().items()
        if not torch.equal(value, start.state_dict()[name])
    }
    assert all(name.startswith(("1.exits.", "1.projections.")) for name in moved)
    for depth in (2, 3):
        assert f"1.projections.{depth}" in moved
        assert f"1.exits.{depth}.spatial_selection.expand.weight" in moved
    full, before = (encode_exits(each, TEXTS, [2])[4] for each in (trained, start))
    np.testing.assert_allclose(cosines(full, before), 1, atol=1e-6)


def test_exits_with_nothing_to_train_are_refused(recipe: Recipe) -> None:
    plain = elastic(replace(recipe, selector=LAST), project=False, exits_only=True)
    with pytest.raises(ConfigError, match="exits_only leaves nothing to train.* project = true"):
        new_encoder(plain)


def cosines(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(others, axis=1)
    return np.asarray((rows * others).sum(1) / lengths)


def test_a_recipe_adds_projections_to_trained_gates_and_goes_on_from_its_own(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    train(elastic(recipe, project=False), data, tmp_path / "gates")
    name = replace(recipe.backbone, name=str(tmp_path / "gates"))
    added = replace(elastic(recipe, project=True), backbone=name)
    gates = get_selector(load_encoder(tmp_path / "gates")).state_dict()
    for key, value in gates.items():
        assert torch.equal(get_selector(new_encoder(added)).state_dict()[key], value), key
    train(added, data, tmp_path / "added")
    projections = get_selector(load_encoder(tmp_path / "added")).projections
    again = replace(added, backbone=replace(name, name=str(tmp_path / "added")))
    for depth, matrix in projections.items():
        assert not torch.equal(matrix, torch.eye(len(matrix)))
        assert torch.equal(get_selector(new_encoder(again)).projections[depth], matrix)


def test_a_low_rank_head_starts_as_the_last_block_and_is_saved_as_a_matrix(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """An interrupted run ends with the same matrices: the identity plus one of that rank."""
    rank = 3
    sizes = Elastic(depths=[2, 3], dimensions=[8], project=True, project_rank=rank)
    head = replace(recipe, selector=LAST, elastic=sizes)
    plain = replace(recipe, selector=None, elastic=replace(sizes, project=False, project_rank=0))
    start, last = (encode_exits(new_encoder(each), TEXTS, [2, 3]) for each in (head, plain))
    for depth in (2, 3, 4):
        np.testing.assert_allclose(start[depth], last[depth], atol=1e-6)
    train(head, data, tmp_path / "whole")
    with interrupted_at(3), pytest.raises(Interrupted):
        train(head, data, tmp_path / "parted")
    train(head, data, tmp_path / "parted", resume=True)
    matrices = dict(get_selector(load_encoder(tmp_path / "whole")).projections)
    again = dict(get_selector(load_encoder(tmp_path / "parted")).projections)
    assert [*matrices] == ["2", "3"]
    for name, matrix in matrices.items():
        change = matrix.detach() - torch.eye(len(matrix))
        assert torch.linalg.matrix_rank(change, atol=1e-5) == rank
        assert torch.equal(matrix, again[name])
