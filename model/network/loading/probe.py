"""Tries an encoder on one word: it must give a vector of finite numbers, as wide as it says."""

from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from s2sent.model.network.loading.checkpoint import CheckpointError, first_line


def require_vectors(checkpoint: Path, encoder: SentenceTransformer) -> None:
    """Raise `CheckpointError` unless the encoder gives finite numbers, as many as it says."""
    for name, weight in encoder.named_parameters():
        if not weight.isfinite().all():  # attention gives numbers for some that are not
            raise CheckpointError(
                f"{checkpoint} has a weight that is no finite number, in {name}: train or fetch it "
                "again."
            )
    vectors = embed_probe(checkpoint, encoder)
    if not np.isfinite(vectors).all():
        raise CheckpointError(
            f"{checkpoint} gives no finite vector for a text: train or fetch it again."
        )
    if (dim := vectors.shape[-1]) != (told := encoder.get_embedding_dimension()):
        raise CheckpointError(
            f"{checkpoint} gives vectors of {dim} numbers and its modules say {told}: correct the "
            "configuration of its Pooling or Dense, or choose another model."
        )


def embed_probe(
    source: object, encoder: SentenceTransformer, passed: tuple[type[Exception], ...] = ()
) -> NDArray[np.float32]:
    """The vectors [1, dim] of one word.

    Raises `CheckpointError` for whatever the libraries raise, but for what is ``passed`` on.
    """
    passed += (ImportError, MemoryError)
    try:
        vectors: Any = encoder.encode(["probe"], show_progress_bar=False)
    except passed:
        raise
    except Exception as error:  # whatever the libraries raise on parts that do not fit together
        raise CheckpointError(
            f"{source} cannot embed a text ({first_line(error)}): correct its configuration or "
            "its tokenizer, or choose another model."
        ) from error
    return cast(NDArray[np.float32], vectors)
