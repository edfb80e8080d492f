"""Contrastive losses, unsupervised and supervised SimCSE: InfoNCE over the rows of a batch.

The loss is sentence-transformers' `MultipleNegativesRankingLoss`; this module adds one forward pass
over all views and a head that is used in training only.
"""

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor, nn

from s2sent.model.network.transformer import padding_id
from s2sent.training.objectives.forward import Batch, Features, embed_together
from s2sent.training.objectives.similarity import MaskedCosine, cosine


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

    def prepare(self, columns: Features) -> list[Batch]:
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
