"""What the loss of an objective is made from."""

from dataclasses import dataclass
from pathlib import Path

from sentence_transformers import SentenceTransformer

from s2sent.training.corpus import Corpus
from s2sent.training.recipe.recipe import Recipe


@dataclass(frozen=True)
class LossInputs:
    """The encoder that is trained, and on what.

    ``teacher_cache`` keeps teachers' embeddings between runs. With ``gather`` the negatives of a
    row are those of all processes.
    """

    encoder: SentenceTransformer
    recipe: Recipe
    corpus: Corpus
    teacher_cache: Path | None = None
    gather: bool = False
