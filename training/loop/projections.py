"""Where the projections of exits begin: least squares towards the embeddings of full depth."""

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from model.network.encoder import get_selector
from training.evaluation.depths.embeddings import encode_exits

RIDGE = 1e-3  # of the mean square of a feature


def start_projections(encoder: SentenceTransformer, texts: list[str]) -> None:
    """Set the matrix of each exit to the one that brings its embeddings closest to full depth's.

    Each exit's embeddings of ``texts``, of length 1, times its matrix have the least squared
    distance from those of full depth.
    """
    selector = get_selector(encoder)
    depths = selector.config.exits
    embeddings = {
        depth: _unit(rows) for depth, rows in encode_exits(encoder, texts, depths).items()
    }
    target = embeddings[max(embeddings)]
    for depth in depths:
        matrix = torch.from_numpy(least_squares(embeddings[depth], target))
        selector.projections[str(depth)].data.copy_(matrix)


def least_squares(rows: NDArray[np.float32], target: NDArray[np.float32]) -> NDArray[np.float32]:
    """The matrix W [D, D] with the least |rows W - target|^2 + n RIDGE / D |W|^2, rows [n, D]."""
    exact = rows.astype(np.float64)
    products = exact.T @ exact
    products[np.diag_indices_from(products)] += RIDGE * len(rows) / rows.shape[1]
    return np.linalg.solve(products, exact.T @ target).astype(np.float32)


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
    return unit
