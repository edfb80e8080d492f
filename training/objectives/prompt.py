"""The PromptBERT objective: a contrast of two templates of each sentence (arXiv 2201.04337).

`model.network.encoder` builds what it trains: an encoder that reads sentences inside a template.

Shapes: B texts, L tokens (padded), D features.
"""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor, nn

from s2sent.model.artifact.template import Template
from s2sent.model.network.transformer import TemplateTransformer
from s2sent.training.errors import EncoderError
from s2sent.training.objectives.similarity import cosine


class TemplateDenoisingLoss(nn.Module):
    """Contrast of two templates of the same sentences, each without what the template alone gives.

    z_t(x) = MLP(h(x, t) - d(t, len(x))), then InfoNCE between the two (arXiv 2201.04337, Eq. 5-7):
    h is the pipeline's vector of the sentence in template t, and d the pipeline's vector of the
    template alone, its tokens at the positions they have around len(x) tokens. Both carry gradient.
    The MLP, Linear and tanh, belongs to the loss: the encoder is used without it. Columns after the
    second are hard negatives. With ``gather`` the negatives of a row are those of all processes.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        temperature: float = 0.05,
        denoising: bool = True,
        projection: bool = True,
        *,
        gather: bool = False,
    ) -> None:
        """Raises TypeError or ValueError for a pipeline that `build_prompt_encoder` does not make,
        and `EncoderError` for denoising with a backbone that takes no positions."""
        super().__init__()
        transformer = model[0]
        if not isinstance(transformer, TemplateTransformer):
            raise TypeError("the encoder has no template: build it with build_prompt_encoder.")
        if any(isinstance(module, Normalize) for module in model):
            raise ValueError("the encoder ends in Normalize: build it with build_prompt_encoder.")
        backbone = transformer.auto_model
        if denoising and "position_ids" not in inspect.signature(backbone.forward).parameters:
            raise EncoderError(
                f"{backbone.name_or_path} takes no position ids, which denoising shifts: "
                "set denoising = false or choose another backbone."
            )
        width = transformer.get_embedding_dimension()
        self.model = model
        self.denoising = denoising
        self.transformer = transformer
        self.templates = transformer.template_ids
        self.projection = (
            nn.Sequential(nn.Linear(width, width), nn.Tanh()) if projection else nn.Identity()
        )
        self.contrast = MultipleNegativesRankingLoss(
            model, 1 / temperature, cosine, gather_across_devices=gather
        )

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor) -> Tensor:
        """The loss of columns that `TemplateTransformer.preprocess` made; ``labels`` are unused."""
        columns = list(sentence_features)
        if len({column["template"] for column in columns}) < 2:
            raise ValueError(
                f"the {len(columns)} columns have one template: give the trainer's arguments "
                "router_mapping=view_tasks(columns)."
            )
        views = [self.projection(self.embed(column)) for column in columns]
        loss: Tensor = self.contrast.compute_loss_from_embeddings(views, labels)
        return loss

    def embed(self, features: dict[str, Any]) -> Tensor:
        """h - d [B, D], or h without denoising, of one column."""
        template = self.templates[features["template"]]
        lengths = features["attention_mask"].sum(1) - template.length
        vectors: Tensor = self.model(features)["sentence_embedding"]
        return vectors - self.template_part(template, lengths) if self.denoising else vectors

    def template_part(self, template: Template, lengths: Tensor) -> Tensor:
        """d [B, D] of one template for sentences of ``lengths`` [B] tokens."""
        distinct, rows = torch.unique(lengths, return_inverse=True)
        features = self.transformer.alone(template, distinct, self.transformer.first_position)
        vectors: Tensor = self.model(features)["sentence_embedding"]
        return vectors[rows]
