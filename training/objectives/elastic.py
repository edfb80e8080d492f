"""Elastic objectives: another objective's loss at many depths and widths, from one forward pass.

sentence-transformers' AdaptiveLayerLoss and Matryoshka2dLoss exchange ``token_embeddings`` alone,
and a selector reads all blocks: here each exit is pooled by its own gate from its own blocks.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.nn import functional

from s2sent.model.network.pooled import embed_exits
from s2sent.training.objectives.forward import Batch, Features, inside_forward, join_columns
from s2sent.training.objectives.similarity import divergence
from s2sent.training.recipe.elastic import Elastic

Views = list[Tensor]  # the embeddings [B, D] of each column
Exits = dict[int, Views]  # by depth, full depth last
OfViews = Callable[[Views], Tensor]


class BaseLoss(Protocol):
    """A loss that can be computed from the embeddings of its columns."""

    def compute_loss_from_embeddings(self, embeddings: Views, labels: Tensor) -> Tensor:
        """The mean loss over the rows."""

    def prepare(self, columns: Features) -> list[Batch]:
        """The columns that are embedded, after the model is put into its mode."""


class ElasticLoss(nn.Module):
    """A base loss at several depths and widths, and the distance of each exit from full depth."""

    def __init__(
        self, model: SentenceTransformer, base: BaseLoss, elastic: Elastic, *, padding: int
    ) -> None:
        super().__init__()
        self.model = model
        self.base: BaseLoss = base  # a module, too
        self.elastic = elastic
        self.padding = padding
        backbone: Any = model[0].get_submodule("auto_model")
        self.full = int(backbone.config.num_hidden_layers)
        self.combine = {"starbucks": starbucks, "2dmse": two_dimensional}[elastic.mode]

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """The mean loss over the rows; ``labels`` [B] are the base loss's."""
        exits = self.embed(sentence_features)
        loss = self.combine(
            exits,
            self.elastic.dimensions,
            lambda views: self.base.compute_loss_from_embeddings(views, labels),
        )
        if self.elastic.align == "none":
            return loss
        return loss + self.elastic.align_weight * alignment(exits, self.elastic.align)

    def embed(self, sentence_features: Features) -> Exits:
        """The columns' embeddings at every depth, from one forward pass of the whole encoder."""
        columns = self.base.prepare(sentence_features)
        rows = inside_forward(self.model, self._rows, join_columns(columns, self.padding))
        return {
            depth: list(each.chunk(len(columns)))
            for depth, each in zip((*self.elastic.depths, self.full), rows, strict=True)
        }

    def _rows(self, encoder: SentenceTransformer, batch: Batch) -> list[Tensor]:
        """The embeddings of a batch at each depth, full depth last."""
        features = encoder(batch)
        shallow = embed_exits(encoder, features, self.elastic.depths)
        return [*shallow, features["sentence_embedding"]]


def starbucks(exits: Exits, dimensions: Sequence[int], loss: OfViews) -> Tensor:
    """The loss of the whole embedding, plus the mean over all smaller pairs of depth and width."""
    *_, full = exits.values()
    width = full[0].shape[-1]
    smaller = [
        loss(_first(views, dimension))
        for views in exits.values()
        for dimension in (*dimensions, width)
        if views is not full or dimension != width
    ]
    return loss(full) + torch.stack(smaller).mean()


def two_dimensional(exits: Exits, dimensions: Sequence[int], loss: OfViews) -> Tensor:
    """2DMSE: with depth l and width d drawn anew, of full depth H and width D,

    C(D, H) + C(D, l) + KL(softmax(X_H) || softmax(X_l)) + C(d, H) + C(d, l), where the divergence
    is over features, the mean over rows, and passes gradient to both sides.
    """
    *shallow, full = exits.values()
    views = shallow[int(torch.randint(len(shallow), ()))]
    dimension = dimensions[int(torch.randint(len(dimensions), ()))]
    total = loss(full) + loss(views) + divergence(torch.cat(full), torch.cat(views))
    return total + loss(_first(full, dimension)) + loss(_first(views, dimension))


def alignment(exits: Exits, kind: str) -> Tensor:
    """The mean over shallow depths and rows of the distance from the embedding of full depth."""
    *shallow, full = exits.values()
    target = torch.cat(full).detach().float()
    if kind == "squared":
        return torch.stack(
            [functional.mse_loss(torch.cat(views).float(), target) for views in shallow]
        ).mean()
    return torch.stack(
        [1 - functional.cosine_similarity(torch.cat(v).float(), target).mean() for v in shallow]
    ).mean()


def _first(views: Views, dimension: int) -> Views:
    return [view[:, :dimension] for view in views]
