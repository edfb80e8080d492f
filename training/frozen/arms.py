"""The arms that a frozen experiment compares: S2Sent's selector and its controls."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from model.network.selector import SelectorConfig
from training.frozen.heads import (
    LastBlock,
    LowRankHead,
    SelectorHead,
    StaticHead,
    num_parameters,
    rank_with,
)

NUM_BLOCKS = 3


@dataclass(frozen=True)
class Arm:
    """One way to make an embedding of the last blocks before an exit; ``make`` takes the width."""

    name: str
    label: str
    make: Callable[[int], nn.Module]
    learns: bool = True


def _gate(weight_norm: str) -> Callable[[int], nn.Module]:
    def make(width: int) -> nn.Module:
        return SelectorHead(
            SelectorConfig.preset(
                "default", width=width, num_blocks=NUM_BLOCKS, weight_norm=weight_norm
            )
        )

    return make


def _low_rank(width: int) -> nn.Module:
    gate = num_parameters(_gate("softmax_logits")(width))
    return LowRankHead(width, rank_with(gate, width))


def _mean(width: int) -> nn.Module:
    return SelectorHead(SelectorConfig(width=width, num_blocks=NUM_BLOCKS, spatial_selection="avg"))


S2SENT = Arm("s2sent", "S2Sent, softmax over logits", _gate("softmax_logits"))
ARMS = {
    arm.name: arm
    for arm in (
        Arm("last", "last block", lambda width: LastBlock(), learns=False),
        Arm("mean", "fixed mean of the three blocks", _mean, learns=False),
        Arm(
            "static-blocks",
            "static weights, one per block",
            lambda width: StaticHead(NUM_BLOCKS, width, per_feature=False),
        ),
        Arm(
            "static-features",
            "static weights, one per block and feature",
            lambda width: StaticHead(NUM_BLOCKS, width, per_feature=True),
        ),
        Arm("low-rank", "low-rank head on the last block, as many parameters", _low_rank),
        Arm("s2sent-eq4", "S2Sent, Eq. 4 (softmax over sigmoids)", _gate("softmax_blocks")),
        S2SENT,
    )
}
