"""Heads that turn states of a frozen backbone into embeddings, and the arms that use them.

Shapes: B texts, N blocks, D features. A head takes the pooled vectors [B, N, D] of texts, their DCT
coefficients [B, N, D] and their lengths [B], and gives embeddings [B, D], not normalised.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from s2sent.model.network.selector import S2SentSelector
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.selector_states import normed

STATIC = ("static-blocks", "static-features")
LOW_RANK = "low-rank-rms"  # the control of decoders that fuses nothing
MOST_BLOCKS = 12  # of an arm
SCALINGS = {"none": "as they are", "rms": "each of size 1", "length": "each of length 1"}
ONLY_TABLES = "mean-3-length"  # not run again: its cosines are those of mean-3-rms

Head = Callable[[Tensor, Tensor, Tensor], Tensor]  # pooled, coefficients, lengths to embeddings


class FusionHead(nn.Module):
    """A weighted sum of the blocks: their mean, unless a subclass has other weights."""

    def __init__(self, norm: str = "none") -> None:
        super().__init__()
        self.norm = norm

    def forward(self, pooled: Tensor, coefficients: Tensor, lengths: Tensor) -> Tensor:
        """Embeddings [B, D]."""
        states = normed(pooled, self.norm).movedim(1, 0)
        return (self.weights(coefficients, lengths) * states).sum(0)

    def weights(self, coefficients: Tensor, lengths: Tensor) -> Tensor:
        """The fusion weights [N, B, D] of texts."""
        return torch.full_like(coefficients, 1 / coefficients.shape[1]).movedim(1, 0)


class SelectorHead(FusionHead):
    """A selector on such states, equal to the selector on tokens followed by its pooling."""

    def __init__(self, config: SelectorConfig) -> None:
        super().__init__(config.input_norm)
        self.selector = S2SentSelector(config)

    def weights(self, coefficients: Tensor, lengths: Tensor) -> Tensor:
        """The fusion weights [N, B, D], by the gate."""
        blocks = normed(coefficients, self.norm).unbind(1)
        squeeze, gate = self.selector.frequency_selection, self.selector.spatial_selection
        assert squeeze is not None  # noqa: S101 - every arm's selector has a gate that squeezes
        assert gate is not None  # noqa: S101
        # A spectrum whose rows are all equal has the coefficient in each feature's own row.
        spectra = [block[:, None].expand(-1, len(squeeze.rows), -1) for block in blocks]
        places = torch.arange(int(lengths.max()))
        mask = (places < lengths[:, None]).to(coefficients.dtype)
        weights: Tensor = gate(squeeze(spectra, mask), len(blocks))
        return weights


class StaticHead(FusionHead):
    """Learned weights that do not depend on the text: softmax over blocks, first the mean.

    One weight per block, or with ``per_feature`` one per block and feature.
    """

    def __init__(
        self, num_blocks: int, width: int, *, per_feature: bool, norm: str = "none"
    ) -> None:
        super().__init__(norm)
        self.width = width
        self.logits = nn.Parameter(torch.zeros(num_blocks, width if per_feature else 1))

    def weights(self, coefficients: Tensor, lengths: Tensor) -> Tensor:
        """The fusion weights [N, B, D], equal for all texts."""
        weights = self.logits.softmax(0).expand(-1, self.width)
        return weights[:, None].expand(-1, len(coefficients), -1)


class LowRankHead(nn.Module):
    """Linear D -> k -> D on the last block, added to it; it starts as the last block."""

    def __init__(self, width: int, rank: int, norm: str = "none") -> None:
        super().__init__()
        self.norm = norm
        self.down = nn.Linear(width, rank)
        self.up = nn.Linear(rank, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, pooled: Tensor, coefficients: Tensor, lengths: Tensor) -> Tensor:
        """Embeddings [B, D]."""
        last = normed(pooled, self.norm)[:, -1]
        embeddings: Tensor = last + self.up(self.down(last))
        return embeddings


def num_parameters(module: nn.Module) -> int:
    """The number of learned parameters, biases included."""
    return sum(parameter.numel() for parameter in module.parameters())


def rank_with(parameters: int, width: int) -> int:
    """The rank of the `LowRankHead` whose number of parameters is nearest to ``parameters``."""
    return max(1, round((parameters - width) / (2 * width + 1)))


Make = Callable[[int], nn.Module]  # a head of a width


@dataclass(frozen=True)
class Arm:
    """A way to make an embedding of the last blocks.

    The tables compare it with its ``controls``, which are names of other arms.
    """

    label: str
    make: Make
    controls: tuple[str, ...] = ()
    num_blocks: int = 3
    learns: bool = True


def _gate(preset: str, num_blocks: int = 3, **options: str) -> Make:
    return lambda width: SelectorHead(
        SelectorConfig.preset(preset, width=width, num_blocks=num_blocks, **options)
    )


def _static(per_feature: bool, num_blocks: int = 3, norm: str = "none") -> Make:
    return lambda width: StaticHead(num_blocks, width, per_feature=per_feature, norm=norm)


def _low_rank(gate: Make, norm: str = "none") -> Make:
    """Of as many parameters as a gate."""
    return lambda width: LowRankHead(width, rank_with(num_parameters(gate(width)), width), norm)


LAST = Arm("last block", lambda _: FusionHead(), num_blocks=1, learns=False)
_LOGITS = _gate("default", weight_norm="softmax_logits")
ENCODER_ARMS = {
    "last": LAST,
    "mean": Arm("fixed mean of the three blocks", lambda _: FusionHead(), learns=False),
    "static-blocks": Arm("static weights, one per block", _static(False)),
    "static-features": Arm("static weights, one per block and feature", _static(True)),
    "low-rank": Arm("low-rank head on the last block, as many parameters", _low_rank(_LOGITS)),
    "s2sent-eq4": Arm(
        "S2Sent, Eq. 4 (softmax over sigmoids)", _gate("default", weight_norm="softmax_blocks")
    ),
}
ENCODER_ARMS["s2sent"] = Arm("S2Sent, softmax over logits", _LOGITS, (*ENCODER_ARMS,))


def _decoder_arms(number: int, norm: str, *, learned: bool = True) -> dict[str, Arm]:
    """The mean, static weights and the gate on so many blocks, each beside what is simpler."""
    kind, tail = f"{number}-{norm}", f"{number} blocks, {SCALINGS[norm]}"
    mean, blocks, features = (f"{name}-{kind}" for name in ("mean", *STATIC))
    fixed = Arm(f"mean of {tail}", lambda _: FusionHead(norm), ("last",), number, learns=False)
    if not learned:
        return {mean: fixed}
    before, gate = ("last", mean), _gate("decoder", number, input_norm=norm)
    one, many = (_static(each, number, norm) for each in (False, True))
    controls = (*before, LOW_RANK, blocks, features)
    return {
        mean: fixed,
        blocks: Arm(f"static weights a block, {tail}", one, before, number),
        features: Arm(f"static a block, feature, {tail}", many, (*before, blocks), number),
        f"s2sent-{kind}": Arm(f"S2Sent, {tail}", gate, controls, number),
    }


DECODER_ARMS = {
    "last": LAST,
    **_decoder_arms(4, "none", learned=False),
    **_decoder_arms(4, "rms", learned=False),
    **_decoder_arms(3, "none"),
    **_decoder_arms(3, "length", learned=False),
    **_decoder_arms(3, "rms"),
    **_decoder_arms(6, "rms"),
    **_decoder_arms(MOST_BLOCKS, "rms"),
    LOW_RANK: Arm(
        "low-rank head on the last block, as many parameters as S2Sent on 3",
        _low_rank(_gate("decoder", input_norm="rms"), "rms"),
        ("last",),
    ),
}
ARMS = ENCODER_ARMS | DECODER_ARMS


def arms_for(blocks: int, *, causal: bool) -> list[str]:
    """The arms for a backbone of so many blocks, a decoder's or an encoder's."""
    arms = DECODER_ARMS if causal else ENCODER_ARMS
    fitting = [name for name, arm in arms.items() if arm.num_blocks <= blocks]
    return [name for name in fitting if name != ONLY_TABLES]
