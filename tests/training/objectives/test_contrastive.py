"""The contrastive losses: gradients in pieces, columns in one pass, cosines in full precision."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.util import cos_sim

from s2sent.training.corpus import Corpus
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.sts import read_sentence_pairs
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.objectives.forward import embed_together
from s2sent.training.objectives.from_recipe import make_loss
from s2sent.training.objectives.similarity import cosine
from s2sent.training.recipe.recipe import Recipe
from tests.support.tiny_recipes import QUICK


def test_gradients_in_pieces_are_those_of_the_whole_batch(recipe: Recipe, data: Path) -> None:
    """GradCache (arXiv 2101.06983): the same loss and gradients, a few rows in memory at a time."""
    texts: list[Any] = [*read_sentence_pairs(data / "sts" / "stsb-dev.tsv").first[:8]]
    seen = []
    for pieces in (0, 3):
        torch.manual_seed(recipe.seed)
        pieced = replace(recipe, training=replace(QUICK, mini_batch_size=pieces))
        encoder = new_encoder(pieced)
        loss = make_loss(encoder, pieced, Corpus({}, ""))
        encoder.eval()  # the two ways would draw other dropout masks
        columns = [encoder.preprocess(texts), encoder.preprocess(texts[::-1])]
        value = loss(columns, torch.zeros(8))
        value.backward()
        grads = [p.grad for p in encoder.parameters() if p.grad is not None]
        seen.append((value.item(), torch.cat([grad.flatten() for grad in grads])))
    assert seen[0][0] == pytest.approx(seen[1][0], rel=1e-5)
    torch.testing.assert_close(seen[0][1], seen[1][1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("pieces", "gather"), [(3, False), (0, True)])
def test_a_gate_that_is_normalised_by_the_batch_takes_whole_batches(
    recipe: Recipe, pieces: int, gather: bool
) -> None:
    """In pieces its gradients are others, and its running statistics are updated for each."""
    training = replace(QUICK, mini_batch_size=pieces)
    divided = replace(recipe, selector={"reduction": 4, "norm": "batch"}, training=training)
    encoder = new_encoder(divided)
    with pytest.raises(ConfigError, match="normalises by the whole batch, which .* divides"):
        make_loss(encoder, divided, Corpus({}, ""), gather=gather)


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
