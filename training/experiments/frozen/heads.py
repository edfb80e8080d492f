"""Heads that turn the cached states of a frozen backbone into embeddings: selectors and controls.

Shapes: B texts, N blocks, D features.
"""

import torch
from torch import Tensor, nn

from s2sent.model.network.selector import S2SentSelector
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.selector_states import normed
from s2sent.training.experiments.frozen.states import require_cacheable


class SelectorHead(nn.Module):
    """A selector on cached states, equal to the selector on tokens followed by its pooling."""

    def __init__(self, config: SelectorConfig) -> None:
        super().__init__()
        require_cacheable(config)
        self.selector = S2SentSelector(config)

    def forward(self, pooled: Tensor, coefficients: Tensor, lengths: Tensor) -> Tensor:
        """Embeddings [B, D], not normalised."""
        weights = self.weights(coefficients, lengths)
        return (weights * self._scaled(pooled).movedim(1, 0)).sum(0)

    def _scaled(self, states: Tensor) -> Tensor:
        norm = self.selector.config.input_norm
        return states if norm == "none" else normed(states, norm)

    def weights(self, coefficients: Tensor, lengths: Tensor) -> Tensor:
        """The fusion weights [N, B, D] of texts."""
        blocks = self._scaled(coefficients).unbind(1)
        squeeze, gate = self.selector.frequency_selection, self.selector.spatial_selection
        if gate is None or squeeze is None:
            return torch.full_like(coefficients, 1 / len(blocks)).movedim(1, 0)
        # A spectrum whose rows are all equal has the cached coefficient in each feature's own row.
        spectra = [block[:, None].expand(-1, len(squeeze.rows), -1) for block in blocks]
        places = torch.arange(int(lengths.max()))
        mask = (places < lengths[:, None]).to(coefficients.dtype)
        weights: Tensor = gate(squeeze(spectra, mask), len(blocks))
        return weights


class StaticHead(nn.Module):
    """Learned weights that do not depend on the text: softmax over blocks, first the mean.

    One weight per block, or with ``per_feature`` one per block and feature.
    """

    def __init__(self, num_blocks: int, width: int, *, per_feature: bool) -> None:
        super().__init__()
        self.width = width
        self.logits = nn.Parameter(torch.zeros(num_blocks, width if per_feature else 1))

    def forward(self, pooled: Tensor, coefficients: Tensor, lengths: Tensor) -> Tensor:
        """Embeddings [B, D], not normalised."""
        return (self.logits.softmax(0) * pooled).sum(1)

    def weights(self, coefficients: Tensor, lengths: Tensor) -> Tensor:
        """The fusion weights [N, B, D], equal for all texts."""
        weights = self.logits.softmax(0).expand(-1, self.width)
        return weights[:, None].expand(-1, len(coefficients), -1)


class Scaled(nn.Module):
    """Another head on states that are scaled first, as ``input_norm`` scales a token's."""

    def __init__(self, head: nn.Module, norm: str) -> None:
        super().__init__()
        self.head, self.norm = head, norm
        if hasattr(head, "weights"):
            self.weights = head.weights

    def forward(self, pooled: Tensor, coefficients: Tensor, lengths: Tensor) -> Tensor:
        """Embeddings [B, D], not normalised."""
        embeddings: Tensor = self.head(normed(pooled, self.norm), coefficients, lengths)
        return embeddings


class BlockMean(nn.Module):
    """The mean of the blocks, of which one may be all; nothing is learned."""

    def forward(self, pooled: Tensor, coefficients: Tensor, lengths: Tensor) -> Tensor:
        """Embeddings [B, D], not normalised."""
        return pooled.mean(1)


class LowRankHead(nn.Module):
    """Linear D -> k -> D on the last block, added to it; it starts as the last block."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank)
        self.up = nn.Linear(rank, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, pooled: Tensor, coefficients: Tensor, lengths: Tensor) -> Tensor:
        """Embeddings [B, D], not normalised."""
        last = pooled[:, -1]
        embeddings: Tensor = last + self.up(self.down(last))
        return embeddings


def num_parameters(module: nn.Module) -> int:
    """The number of learned parameters, biases included."""
    return sum(parameter.numel() for parameter in module.parameters())


def rank_with(parameters: int, width: int) -> int:
    """The rank of the `LowRankHead` whose number of parameters is nearest to ``parameters``."""
    return max(1, round((parameters - width) / (2 * width + 1)))
