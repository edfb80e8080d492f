"""Finds the module that trains a recipe's objective; every family of objectives has one."""

from collections.abc import Mapping
from typing import Protocol, cast

from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer
from torch import nn

from s2sent.model.network.encoder import find_selector
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.transformer import padding_id
from s2sent.training.corpus import Corpus
from s2sent.training.errors import ConfigError
from s2sent.training.objectives import contrastive, distillation, jtcse, prompt, sfp
from s2sent.training.objectives.elastic import BaseLoss, ElasticLoss
from s2sent.training.objectives.loss_inputs import LossInputs
from s2sent.training.recipe.objectives import (
    JTCSE,
    SFP,
    Distillation,
    PairDistillation,
    PromptBERT,
    SimCSE,
    SupervisedSimCSE,
)
from s2sent.training.recipe.recipe import Recipe


class Family(Protocol):
    """What the module of a family supplies."""

    @property
    def ENDS_IN_NORMALIZE(self) -> bool:
        """Whether a saved checkpoint gives embeddings of length 1."""

    @property
    def COLUMN_TASKS(self) -> Mapping[str, str]:
        """The task of each column, for the trainer's ``router_mapping``."""

    def build_encoder(
        self, folder: str, recipe: Recipe, config: SelectorConfig | None
    ) -> SentenceTransformer:
        """The untrained encoder, which ends in its pooling.

        Raises ValueError where the backbone does not fit, and `ConfigError`.
        """

    def make_loss(self, inputs: LossInputs) -> nn.Module:
        """The loss of the recipe's objective.

        Raises `ConfigError` for gradients in pieces where the objective cannot have them.
        """

    def columns(self, corpus: Corpus, recipe: Recipe) -> Dataset | DatasetDict:
        """The corpus as the trainer reads it, a dataset for each source."""


FAMILIES: dict[type, Family] = {
    SimCSE: contrastive,
    SupervisedSimCSE: contrastive,
    PromptBERT: prompt,
    SFP: sfp,
    Distillation: distillation,
    PairDistillation: distillation,
    JTCSE: jtcse,
}


def make_loss(inputs: LossInputs) -> nn.Module:
    """The loss of the recipe's objective; an elastic recipe's takes it at every depth and width."""
    encoder, recipe = inputs.encoder, inputs.recipe
    _refuse_parts_of_batches(inputs)
    base = family_of(recipe).make_loss(inputs)
    if recipe.elastic is None:
        return base
    width = encoder.get_embedding_dimension() or 0
    if too_wide := [each for each in recipe.elastic.dimensions if each >= width]:
        raise ConfigError(
            f"[elastic] dimensions has {too_wide[0]}, and the encoder is {width} wide: name "
            f"dimensions from 1 to {width - 1}."
        )
    if inputs.gather and recipe.elastic.mode == "2dmse":
        raise ConfigError(
            "[elastic] mode = '2dmse' draws sizes in each process, and torchrun started several: "
            "train it without torchrun, or choose starbucks."
        )
    padding = padding_id(encoder.tokenizer)
    return ElasticLoss(encoder, cast(BaseLoss, base), recipe.elastic, padding=padding)


def _refuse_parts_of_batches(inputs: LossInputs) -> None:
    """Raise `ConfigError` where a gate would be normalised by a part of each batch, not by all."""
    selector = find_selector(inputs.encoder)
    if selector is None or selector.config.norm != "batch":
        return
    pieces = inputs.recipe.training.mini_batch_size
    if pieces or inputs.gather:
        parts = f"mini_batch_size = {pieces}" if pieces else "torchrun"
        raise ConfigError(
            f"[selector] norm = 'batch' normalises by the whole batch, which {parts} divides: "
            "leave one of them out, or choose norm = 'layer'."
        )


def family_of(recipe: Recipe) -> Family:
    """The family of a recipe's objective."""
    return FAMILIES[type(recipe.objective)]
