"""Where the projections of exits begin: least squares towards the embeddings of full depth."""

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from s2sent.model.network.encoder import get_selector
from s2sent.training.corpus import Corpus
from s2sent.training.evaluation.depths.embeddings import encode_exits
from s2sent.training.loop.dev import truncated_to
from s2sent.training.recipe.recipe import Recipe

RIDGE = 1e-3  # of the mean square of a feature
MOST_TEXTS = 16_384  # to which projections are fitted


def fit_new_projections(encoder: SentenceTransformer, recipe: Recipe, corpus: Corpus) -> None:
    """Fit new projections of exits to texts of the corpus, at equal steps through it."""
    if recipe.elastic is None or not recipe.elastic.project or recipe.elastic.project_rank:
        return
    projections = get_selector(encoder).projections.values()
    if all(torch.equal(each, torch.eye(*each.shape, device=each.device)) for each in projections):
        texts = corpus.texts()
        step = -(-len(texts) // MOST_TEXTS)
        with truncated_to(encoder, recipe.backbone.max_seq_length):
            start_projections(encoder, texts[::step])
        if recipe.training.round_matrices:
            from s2sent.model.export.int8.rounding import round_projections  # loads what exports

            round_projections(encoder)


def start_projections(encoder: SentenceTransformer, texts: list[str]) -> None:
    """Set the matrix of each exit to the one that brings its embeddings closest to full depth's.

    What the matrix reads of each of ``texts``, with what is fused of length 1, times the matrix has
    the least squared distance from the embedding of full depth.
    """
    selector = get_selector(encoder)
    width, depths = selector.config.width, selector.config.exits
    for depth in depths:  # behind such a matrix an exit gives what its matrix reads
        rows = selector.config.projection_rows(depth)
        selector.projections[str(depth)].data = torch.eye(rows, device=encoder.device)
    read = encode_exits(encoder, texts, depths)
    target = _unit(read[max(read)], width)
    for depth in depths:
        matrix = torch.from_numpy(least_squares(_unit(read[depth], width), target))
        selector.projections[str(depth)].data = matrix.to(encoder.device)


def least_squares(rows: NDArray[np.float32], target: NDArray[np.float32]) -> NDArray[np.float32]:
    """The matrix W [R, D] with the least |rows W - target|^2 + n r |W|^2, of rows [n, R].

    r is `RIDGE` times the mean square of a feature of ``rows``.
    """
    exact = rows.astype(np.float64)
    products = exact.T @ exact
    products[np.diag_indices_from(products)] += RIDGE * np.trace(products) / len(products)
    return np.linalg.solve(products, exact.T @ target).astype(np.float32)


def _unit(rows: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Rows divided by the length of their first ``width`` features."""
    lengths = np.linalg.norm(rows[:, :width], axis=1, keepdims=True).clip(1e-12)
    unit: NDArray[np.float32] = rows / lengths
    return unit
