"""The objective of CSE-SFP: the two stages of one template are two views, from one forward.

    prefix + X + middle [Rep1] + suffix [Rep2] -> Rep2 is the anchor, Rep1 the positive

A causal backbone keeps Rep1 blind to the suffix, so both are of one forward. A selector weighs the
blocks for each of them by what its squeeze may see.

Shapes: B texts, L tokens (padded), D features.
"""

from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor, nn

from s2sent.model.network.encoder import find_selector
from s2sent.model.network.template import REP1, parse_template
from s2sent.model.network.transformer import TemplateTransformer, padding_id, read_positions
from s2sent.training.errors import ConfigError
from s2sent.training.objectives.forward import Batch, Features, inside_forward, join_columns
from s2sent.training.objectives.similarity import MaskedCosine, cosine


class TwoStageLoss(nn.Module):
    """InfoNCE from Rep2 of the first column to Rep1 of the others, or of itself if it is alone.

    Columns after the second are hard negatives. All columns go through one forward. With ``gather``
    the negatives of a row are those of all processes. With ``mask`` texts that are right answers to
    a row are not among them.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        temperature: float = 0.05,
        *,
        gather: bool = False,
        mask: bool = True,
    ) -> None:
        """Raises `ConfigError` for an encoder whose template has not two stages, or leaks."""
        super().__init__()
        transformer = model[0]
        if not isinstance(transformer, TemplateTransformer) or not transformer.causal:
            raise ConfigError("sfp needs a causal backbone and a template: set template = 'sfp'.")
        template = transformer.templates[0]
        if REP1 not in template:
            raise ConfigError(f"The template {template!r} has no {REP1}, where rep1 ends: add it.")
        selector = find_selector(model)
        gated = selector is not None and selector.spatial_selection is not None
        if selector is not None and gated and selector.config.squeeze_scope == "all":
            raise ConfigError(
                "With squeeze_scope = 'all' the gate of rep1 sees what stands behind it: "
                "set the preset decoder, or squeeze_scope = 'prefix'."
            )
        self.model = model
        tokenizer = transformer.text_tokenizer
        self.padding = padding_id(tokenizer)
        self.rep1 = parse_template(template, tokenizer, "rep1", causal=True).read
        self.masked = MaskedCosine(gather=gather) if mask else None
        self.contrast = MultipleNegativesRankingLoss(
            model, 1 / temperature, self.masked or cosine, gather_across_devices=gather
        )

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """The mean loss over the rows; ``labels`` are unused."""
        batches = list(sentence_features)
        if self.masked:
            self.masked.read(batches)
        rep2, rep1 = self.embed(join_columns(batches, self.padding))
        anchors = rep2.chunk(len(batches))[0]
        others = rep1.chunk(len(batches))[1:] or (rep1,)
        loss: Tensor = self.contrast.compute_loss_from_embeddings([anchors, *others], labels)
        return loss

    def embed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Rep2 and Rep1 [B, D] of the rows of one batch, from one forward."""
        rep2, rep1 = inside_forward(self.model, self._stages, batch)
        return rep2, rep1

    def _stages(self, encoder: SentenceTransformer, batch: Batch) -> list[Tensor]:
        backbone, *modules = encoder
        if not any(weight.requires_grad for weight in backbone.parameters()):
            backbone.eval()  # its states are the same in each step, and may be kept
        features: dict[str, Any] = backbone(batch)
        found = []
        for place in (-1, self.rep1):
            assert place is not None  # noqa: S101 - parsed with a token to read
            read = read_positions(features["attention_mask"], place)
            stage = {**features, "read_positions": read}
            for module in modules:
                stage = module(stage)
            found.append(stage["sentence_embedding"])
        return found
