"""Contrastive objectives, unsupervised and supervised SimCSE: InfoNCE over the rows of a batch.

The loss is sentence-transformers' `MultipleNegativesRankingLoss`; this module adds one forward pass
over all views and a head that is used in training only.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor, nn
from torch.nn import functional

from s2sent.model.network import encoder as network
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.template import TemplateError, template_text
from s2sent.model.network.transformer import padding_id
from s2sent.training.corpus import Corpus
from s2sent.training.errors import ConfigError
from s2sent.training.objectives.cosine import cosine
from s2sent.training.objectives.equal_texts import MaskedCosine
from s2sent.training.objectives.loss_inputs import LossInputs
from s2sent.training.recipe.objectives import SimCSE, SupervisedSimCSE
from s2sent.training.recipe.recipe import Recipe

ENDS_IN_NORMALIZE = True
COLUMN_TASKS: Mapping[str, str] = {}
COLUMNS = ("anchor", "positive", "negative")

Features = Iterable[dict[str, Tensor]]


def build_encoder(
    folder: str, recipe: Recipe, config: SelectorConfig | None
) -> SentenceTransformer:
    """The backbone of ``folder`` with a selector; without ``config`` with pooling alone.

    Where the recipe has a template, sentences are read inside it. Raises `ConfigError` for one that
    cannot be used.
    """
    limit = recipe.backbone.max_seq_length
    if recipe.backbone.template:
        return build_template_encoder(folder, recipe, config)
    if config is None:
        return network.build_plain_encoder(
            folder, pooling=recipe.backbone.pooling, max_seq_length=limit, normalize=False
        )
    return network.build_encoder(folder, config, max_seq_length=limit, normalize=False)


def build_template_encoder(
    folder: str,
    recipe: Recipe,
    config: SelectorConfig | None,
    templates: Sequence[str] = (),
) -> SentenceTransformer:
    """The backbone of ``folder`` behind an objective's ``templates``, or that of the recipe.

    Raises `ConfigError` for a template that cannot be used.
    """
    backbone = recipe.backbone
    try:
        return network.build_prompt_encoder(
            folder,
            config,
            templates or [template_text(backbone.template)],
            pooling=backbone.pooling,
            max_seq_length=backbone.max_seq_length,
            clean_up="full_stop" if templates else backbone.clean_up,
        )
    except TemplateError as error:
        raise ConfigError(str(error)) from error


def make_loss(inputs: LossInputs) -> nn.Module:
    """InfoNCE, with gradients in pieces where the recipe sets ``mini_batch_size``."""
    recipe, gather = inputs.recipe, inputs.gather
    objective, pieces = recipe.objective, recipe.training.mini_batch_size
    assert isinstance(objective, SimCSE | SupervisedSimCSE)  # noqa: S101 - family_of has chosen
    masked = isinstance(objective, SupervisedSimCSE) and objective.mask_equal_texts
    options = {"gather": gather, "mask": masked}
    if pieces and not objective.projection and recipe.elastic is None:
        return PiecewiseLoss(inputs.encoder, objective.temperature, pieces=pieces, **options)
    refuse_pieces(recipe)
    return ContrastiveLoss(
        inputs.encoder, objective.temperature, projection=objective.projection, **options
    )


def columns(corpus: Corpus, recipe: Recipe) -> Dataset | DatasetDict:
    """The columns "anchor", "positive" and, for triples, "negative" of each source."""
    return text_columns(corpus)


def text_columns(
    corpus: Corpus, *, numbered: bool = False, views: int = 2
) -> Dataset | DatasetDict:
    """The corpus as the trainer reads it: a dataset for each source, so that batches are of one.

    A single text is in ``views`` columns: each is embedded separately, so dropout or the template
    makes them different views. ``numbered`` adds the example's number in the corpus as ``label``.
    """
    parts, start = {}, 0
    for source, examples in corpus.parts.items():
        filled = [example * views if len(example) == 1 else example for example in examples]
        table: dict[str, list[str] | list[int]] = {
            name: list(column)
            for name, column in zip(COLUMNS, zip(*filled, strict=True), strict=False)
        }
        if numbered:
            table["label"] = list(range(start, start + len(examples)))
        parts[source] = Dataset.from_dict(table)
        start += len(examples)
    return next(iter(parts.values())) if len(parts) == 1 else DatasetDict(parts)


def refuse_pieces(recipe: Recipe) -> None:
    """Raise `ConfigError` where a recipe asks for gradients in pieces."""
    if recipe.training.mini_batch_size:
        raise ConfigError(
            f"[training] mini_batch_size = {recipe.training.mini_batch_size} works with plain "
            "simcse and supervised only: leave it out, or drop the projection or [elastic]."
        )


class ContrastiveLoss(MultipleNegativesRankingLoss):
    """InfoNCE of columns that are embedded in one forward pass, as in SimCSE's own code.

    In a tuned encoder the gradients of the columns almost cancel. One pass sums them in full
    precision; separate passes would round each to bfloat16 first. With ``projection``
    a Linear + tanh is applied between encoder and loss in training (SimCSE's ``mlp_only_train``).
    With ``mask`` texts that are right answers to a row are not among its negatives.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        temperature: float,
        *,
        projection: bool,
        gather: bool,
        mask: bool = False,
    ) -> None:
        masked = MaskedCosine(gather=gather) if mask else None
        super().__init__(model, 1 / temperature, masked or cosine, gather_across_devices=gather)
        self.masked = masked
        width = model.get_embedding_dimension()
        assert width is not None  # noqa: S101 - an encoder has a width
        self.padding = padding_id(model.tokenizer)  # the model may be wrapped later
        self.head = (
            nn.Sequential(nn.Linear(width, width), nn.Tanh()) if projection else nn.Identity()
        )

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """The mean loss over the rows; ``labels`` are unused."""
        views = embed_together(self.model, self.prepare(sentence_features), self.padding)
        return self.compute_loss_from_embeddings([self.head(view) for view in views], labels)

    def prepare(self, columns: Features) -> list[dict[str, Tensor]]:
        """The columns that are embedded: all of them."""
        columns = list(columns)
        if self.masked:
            self.masked.read(columns)
        return columns


class PiecewiseLoss(CachedMultipleNegativesRankingLoss):
    """InfoNCE with gradients in pieces (GradCache, arXiv 2101.06983), or masked."""

    def __init__(
        self,
        model: SentenceTransformer,
        temperature: float,
        *,
        pieces: int,
        gather: bool,
        mask: bool,
    ) -> None:
        masked = MaskedCosine(gather=gather) if mask else None
        super().__init__(
            model,
            1 / temperature,
            masked or cosine,
            mini_batch_size=pieces,
            gather_across_devices=gather,
        )
        self.masked = masked

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """The mean loss over the rows; ``labels`` are unused."""
        columns = list(sentence_features)
        if self.masked:
            self.masked.read(columns)
        loss: Tensor = super().forward(columns, labels)
        return loss


def embed_together(model: nn.Module, columns: Features, padding: int) -> list[Tensor]:
    """The embeddings [B, D] of each column, from one forward pass; ``padding`` is a token id."""
    columns = list(columns)
    batch = join_columns(columns, padding)
    return list(model(batch)["sentence_embedding"].chunk(len(columns)))


def join_columns(columns: Features, padding: int) -> dict[str, Tensor]:
    """The rows of all columns as one batch, a column after the other; ``padding`` is a token id."""
    columns = list(columns)
    longest = max(column["input_ids"].shape[1] for column in columns)
    return {
        name: torch.cat([_padded(column[name], longest, name, padding) for column in columns])
        for name in columns[0]
        if isinstance(columns[0][name], Tensor)
    }


def _padded(rows: Tensor, longest: int, name: str, padding: int) -> Tensor:
    """[B, L] padded to [B, longest]: token ids with ``padding``, others with 0; [B] as it is."""
    if rows.dim() == 1:
        return rows
    value = padding if name == "input_ids" else 0
    return functional.pad(rows, (0, longest - rows.shape[1]), value=value)
