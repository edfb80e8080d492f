"""A text that answers a row is not among its negatives: equal texts are masked in the loss."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from s2sent.training.corpus import Corpus
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.objectives.from_recipe import make_loss
from s2sent.training.objectives.similarity import (
    MaskedCosine,
    right_answers,
    right_partners,
    text_keys,
)
from s2sent.training.recipe.elastic import Elastic
from s2sent.training.recipe.objectives import SFP, SupervisedSimCSE
from s2sent.training.recipe.recipe import BackboneConfig, Recipe
from tests.support.tiny import tiny_decoder
from tests.support.tiny_data import SENTENCES
from tests.support.tiny_recipes import QUICK

NO_CORPUS = Corpus({}, "")
QUERIES = SENTENCES[:4]
ANSWERS = [SENTENCES[20], SENTENCES[21], SENTENCES[20], SENTENCES[22]]  # 0 and 2 share one


def keyed(*numbers: int) -> dict[str, torch.Tensor]:
    """A column of texts of one token each."""
    ids = torch.tensor(numbers)[:, None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def found(*columns: Sequence[int]) -> list[tuple[int, int]]:
    """Rows and candidates that are right answers beside a row's own positive."""
    right = right_answers([keyed(*column) for column in columns], gather=False)
    return [(int(row), int(place)) for row, place in right.nonzero()]


def test_right_answers_are_equal_texts_and_the_positives_of_equal_anchors() -> None:
    assert found([1, 2, 3], [4, 5, 6]) == []
    assert found([1, 2, 3], [4, 5, 4]) == [(0, 2), (2, 0)]  # a shared positive
    assert found([1, 2, 1], [4, 5, 6]) == [(0, 2), (2, 0)]  # a shared anchor
    assert found([1, 2, 3], [4, 1, 6]) == [(0, 1)]  # an anchor that is another's positive
    assert found([1, 2], [4, 5], [7, 4]) == [(0, 3)]  # a positive that is another's hard negative
    assert found([1, 1], [4, 5], [7, 8]) == [(0, 1), (1, 0)]  # hard negatives stay negatives


def test_a_text_has_one_key_however_it_is_padded() -> None:
    right = {
        "input_ids": torch.tensor([[5, 6, 0, 0], [5, 6, 7, 8]]),
        "attention_mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]),
    }
    left = {
        "input_ids": torch.tensor([[9, 5, 6]]),
        "attention_mask": torch.tensor([[0, 1, 1]]),
    }
    assert text_keys(right)[0] == text_keys(left)[0] != text_keys(right)[1]
    several = torch.tensor([[5, 6], [6, 5], [0, 5], [5, 0]])
    keys = text_keys({"input_ids": several, "attention_mask": torch.ones_like(several)})
    assert len({*keys.tolist()}) == 4


def test_pieces_of_a_batch_and_repeated_calls_take_their_own_rows() -> None:
    masked = MaskedCosine(gather=False)
    masked.read([keyed(1, 2, 3), keyed(4, 5, 4)])
    rows, whole = torch.eye(3), torch.eye(3)
    for _ in range(2):
        pieces = torch.cat([masked(rows[:2], whole), masked(rows[2:], whole)])
        assert pieces.isinf().nonzero().tolist() == [[0, 2], [2, 0]]
    masked.read([keyed(1, 2)])
    assert not masked(rows, whole).isinf().any()


def loss_of(recipe: Recipe, columns: Sequence[Sequence[str]]) -> tuple[float, torch.Tensor]:
    """The loss of texts without dropout, and its gradients."""
    torch.manual_seed(recipe.seed)
    encoder = new_encoder(recipe)
    loss = make_loss(encoder, recipe, NO_CORPUS)
    encoder.eval()
    texts: list[Any] = [encoder.preprocess([*column]) for column in columns]
    value = loss(texts, torch.zeros(len(columns[0])))
    value.backward()
    grads = [p.grad.flatten() for p in encoder.parameters() if p.grad is not None]
    return value.item(), torch.cat(grads)


ELASTIC = Elastic(depths=[2, 3], dimensions=[8])


@pytest.mark.parametrize("kind", ["plain", "pieces", "elastic", "sfp"])
def test_a_shared_positive_is_no_negative(recipe: Recipe, tmp_path: Path, kind: str) -> None:
    """The loss of a row is that of the batch without the other row that has its positive."""
    recipe = replace(recipe, objective=SupervisedSimCSE())
    if kind == "pieces":
        recipe = replace(recipe, training=replace(QUICK, mini_batch_size=3))
    elif kind == "elastic":
        recipe = replace(recipe, elastic=ELASTIC)
    elif kind == "sfp":
        decoder = str(tiny_decoder(tmp_path / "decoder"))
        backbone = BackboneConfig(name=decoder, template="sfp", pooling="last_token")
        recipe = replace(recipe, backbone=backbone, objective=SFP(examples="pairs"), selector=None)
    together, _ = loss_of(recipe, [QUERIES, ANSWERS])
    rows = ([0, 1, 3], [1, 0, 2, 3], [2, 1, 3])
    # Row 0 beside 1 and 3, row 2 beside 1 and 3, rows 1 and 3 beside all: from unmasked batches.
    objective: Any = recipe.objective
    as_they_are = replace(recipe, objective=replace(objective, mask_equal_texts=False))
    unmasked, _ = loss_of(as_they_are, [QUERIES, ANSWERS])
    assert together < unmasked - 1e-3
    plain = replace(as_they_are, training=QUICK)
    if kind in ("plain", "pieces"):
        expected = [row_losses(plain, chosen) for chosen in rows]
        by_hand = (expected[0][0] + expected[2][0] + expected[1][0] + expected[1][3]) / 4
        assert together == pytest.approx(by_hand, rel=1e-4)


def row_losses(recipe: Recipe, rows: Sequence[int]) -> list[float]:
    """The loss of each row among these rows, in their order, by numpy."""
    torch.manual_seed(recipe.seed)
    encoder = new_encoder(recipe)
    first, second = (
        np.asarray(encoder.encode([texts[row] for row in rows], normalize_embeddings=True))
        for texts in (QUERIES, ANSWERS)
    )
    logits = first.astype(float) @ second.T.astype(float) / 0.05
    return [float(np.log(np.exp(row).sum()) - row[place]) for place, row in enumerate(logits)]


@pytest.mark.parametrize("elastic", [None, ELASTIC])
@pytest.mark.parametrize("objective", [SupervisedSimCSE(), SFP(examples="pairs")])
def test_texts_that_all_differ_are_trained_on_as_before(
    recipe: Recipe, tmp_path: Path, objective: Any, elastic: Elastic | None
) -> None:
    """To the bit."""
    if isinstance(objective, SFP):
        decoder = str(tiny_decoder(tmp_path / "decoder"))
        backbone = BackboneConfig(name=decoder, template="sfp", pooling="last_token")
        recipe, elastic = replace(recipe, backbone=backbone, selector=None), None
    seen = [
        loss_of(
            replace(recipe, objective=replace(objective, mask_equal_texts=masked), elastic=elastic),
            [QUERIES, SENTENCES[30:34]],
        )
        for masked in (True, False)
    ]
    assert seen[0][0] == seen[1][0]
    assert torch.equal(seen[0][1], seen[1][1])


def test_partners_of_twins_that_are_right_answers() -> None:
    """Rows 2i and 2i + 1 are a pair: here (1, 4), (2, 5) and (3, 4)."""
    right = right_partners(torch.tensor([1, 4, 2, 5, 3, 4]))
    others = [(int(a), int(b)) for a, b in right.nonzero() if a != b]
    assert others == [(0, 5), (1, 4), (1, 5), (4, 1), (5, 0), (5, 1)]
