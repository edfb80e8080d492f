"""What a recipe's objective means for the trainer: columns of the corpus, their tasks, the loss."""

from pathlib import Path
from typing import cast

from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer
from torch import nn

from s2sent.model.network.encoder import find_selector
from s2sent.model.network.transformer import VIEWS, padding_id, view_tasks
from s2sent.training.corpus import Corpus
from s2sent.training.errors import ConfigError, DataError
from s2sent.training.objectives.contrastive import ContrastiveLoss, PiecewiseLoss
from s2sent.training.objectives.distillation import PairDistillationLoss, SimilarityDistillationLoss
from s2sent.training.objectives.elastic import BaseLoss, ElasticLoss
from s2sent.training.objectives.jtcse import JTCSELoss
from s2sent.training.objectives.prompt import TemplateDenoisingLoss
from s2sent.training.objectives.sfp import TwoStageLoss
from s2sent.training.objectives.teacher import teachers_embeddings
from s2sent.training.recipe.objectives import (
    JTCSE,
    SFP,
    Distillation,
    Objective,
    PairDistillation,
    PromptBERT,
    SimCSE,
    SupervisedSimCSE,
)
from s2sent.training.recipe.recipe import Recipe

COLUMNS = ("anchor", "positive", "negative")


def column_tasks(objective: Objective) -> dict[str, str]:
    """The template that each column is read in, for the trainer's ``router_mapping``."""
    if isinstance(objective, PromptBERT):
        return dict(view_tasks(COLUMNS[:2]))
    return dict.fromkeys(COLUMNS, VIEWS[0]) if isinstance(objective, SFP) else {}


def columns(corpus: Corpus, objective: Objective) -> Dataset | DatasetDict:
    """The corpus as the trainer reads it: a dataset for each source, so that batches are of one.

    A single text is in two columns, where dropout or the template makes them different views.
    Where there are teachers, ``label`` is the example's number in the corpus. Raises `DataError`
    for triples that the objective cannot read.
    """
    one_view = isinstance(objective, SFP) or not getattr(objective, "dropout", True)
    parts, start = {}, 0
    for source, examples in corpus.parts.items():
        if isinstance(objective, JTCSE) and len(examples[0]) != 2:
            raise DataError(
                f"{source} has {len(examples[0])} columns, and jtcse reads pairs without hard "
                "negatives: leave the third column out."
            )
        twice = len(examples[0]) == 1 and not one_view
        rows = [example * 2 for example in examples] if twice else examples
        named = zip(COLUMNS, zip(*rows, strict=True), strict=False)
        table: dict[str, list[str] | list[int]] = {name: list(column) for name, column in named}
        if isinstance(objective, Distillation | PairDistillation):
            table["label"] = list(range(start, start + len(examples)))
        parts[source] = Dataset.from_dict(table)
        start += len(examples)
    return next(iter(parts.values())) if len(parts) == 1 else DatasetDict(parts)


def make_loss(
    encoder: SentenceTransformer,
    recipe: Recipe,
    corpus: Corpus,
    cache: Path | None = None,
    *,
    gather: bool = False,
) -> nn.Module:
    """The loss of the recipe's objective; an elastic recipe's takes it at every depth and width.

    ``cache`` keeps teachers' embeddings between runs. With ``gather`` the negatives of a row are
    those of all processes. Raises `ConfigError` where the encoder or its processes do not fit.
    """
    _require_whole_batches(encoder, recipe, gather=gather)
    base = _loss_of_one_size(encoder, recipe, corpus, cache, gather=gather)
    if recipe.elastic is None:
        return base
    width = encoder.get_embedding_dimension() or 0
    if too_wide := [each for each in recipe.elastic.dimensions if each >= width]:
        raise ConfigError(
            f"[elastic] dimensions has {too_wide[0]}, and the encoder is {width} wide: name "
            f"dimensions from 1 to {width - 1}."
        )
    if gather and recipe.elastic.mode == "2dmse":
        raise ConfigError(
            "[elastic] mode = '2dmse' draws sizes in each process, and torchrun started several: "
            "train it without torchrun, or choose starbucks."
        )
    padding = padding_id(encoder.tokenizer)
    return ElasticLoss(encoder, cast(BaseLoss, base), recipe.elastic, padding=padding)


def _require_whole_batches(encoder: SentenceTransformer, recipe: Recipe, *, gather: bool) -> None:
    """Raise `ConfigError` where a gate would be normalised by a part of each batch, not by all."""
    selector, pieces = find_selector(encoder), recipe.training.mini_batch_size
    if selector is not None and selector.config.norm == "batch" and (pieces or gather):
        parts = f"mini_batch_size = {pieces}" if pieces else "torchrun"
        raise ConfigError(
            f"[selector] norm = 'batch' normalises by the whole batch, which {parts} divides: "
            "leave one of them out, or choose norm = 'layer'."
        )


def _loss_of_one_size(
    encoder: SentenceTransformer,
    recipe: Recipe,
    corpus: Corpus,
    cache: Path | None,
    *,
    gather: bool,
) -> nn.Module:
    objective, pieces = recipe.objective, recipe.training.mini_batch_size
    match objective:
        case SimCSE() | SupervisedSimCSE():
            options = {"gather": gather, "mask": getattr(objective, "mask_equal_texts", False)}
            if pieces:
                return PiecewiseLoss(encoder, objective.temperature, pieces=pieces, **options)
            head = objective.projection
            return ContrastiveLoss(encoder, objective.temperature, projection=head, **options)
        case PromptBERT():
            options = {"denoising": objective.denoising, "projection": objective.projection}
            return TemplateDenoisingLoss(encoder, objective.temperature, gather=gather, **options)
        case SFP():
            options = {"gather": gather, "mask": objective.mask_equal_texts}
            return TwoStageLoss(encoder, objective.temperature, **options)
        case JTCSE():
            return JTCSELoss(encoder, objective, gather=gather)
    bf16 = recipe.training.precision == "bf16"
    teacher = teachers_embeddings(objective.teachers, corpus, cache, bf16=bf16)
    if isinstance(objective, Distillation):
        return SimilarityDistillationLoss(encoder, objective, teacher[:, 0], gather=gather)
    return PairDistillationLoss(encoder, objective, teacher, gather=gather)
