"""The arms that a frozen experiment compares: S2Sent's selector and its controls."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from s2sent.model.network.selector_config import SelectorConfig
from s2sent.training.experiments.frozen.heads import (
    BlockMean,
    LastBlock,
    LowRankHead,
    Scaled,
    SelectorHead,
    StaticHead,
    num_parameters,
    rank_with,
)

NUM_BLOCKS = 3  # of the arms on encoders
LOW_RANK = "low-rank-rms"  # the control of decoders that fuses nothing
FUSED = (3, 6, 12)  # numbers of blocks of the arms on decoders
MOST_BLOCKS = max(FUSED)


@dataclass(frozen=True)
class Arm:
    """One way to make an embedding of the last blocks up to a depth; ``make`` takes the width.

    The tables compare it with its ``controls``.
    """

    name: str
    label: str
    make: Callable[[int], nn.Module]
    learns: bool = True
    num_blocks: int = NUM_BLOCKS
    controls: tuple[str, ...] = ()


def blocks_of(arm: Arm, depth: int) -> range:
    """The numbers of the blocks that an arm gets at a depth."""
    return range(depth - arm.num_blocks + 1, depth + 1)


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


LAST = Arm("last", "last block", lambda width: LastBlock(), learns=False)
ENCODER_CONTROLS = (
    LAST,
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
)
S2SENT = Arm(
    "s2sent",
    "S2Sent, softmax over logits",
    _gate("softmax_logits"),
    controls=tuple(arm.name for arm in ENCODER_CONTROLS),
)
ENCODER_ARMS = {arm.name: arm for arm in (*ENCODER_CONTROLS, S2SENT)}


def _decoder_gate(num_blocks: int, norm: str) -> Callable[[int], nn.Module]:
    def make(width: int) -> nn.Module:
        return SelectorHead(
            SelectorConfig.preset("decoder", width=width, num_blocks=num_blocks, input_norm=norm)
        )

    return make


def _static(num_blocks: int, norm: str, *, per_feature: bool) -> Callable[[int], nn.Module]:
    def make(width: int) -> nn.Module:
        return _scaled(StaticHead(num_blocks, width, per_feature=per_feature), norm)

    return make


def _scaled(head: nn.Module, norm: str) -> nn.Module:
    return head if norm == "none" else Scaled(head, norm)


def _decoder_low_rank(width: int) -> nn.Module:
    gate = num_parameters(_decoder_gate(FUSED[0], "rms")(width))
    return Scaled(LowRankHead(width, rank_with(gate, width)), "rms")


def _decoder_arms() -> Iterator[Arm]:
    """The last block; then for each scaling and number of blocks the mean, static weights, gates.

    Three blocks with every scaling, the other numbers with one.
    """
    yield LAST
    for number, norm in ((4, "none"), (4, "rms")):
        yield _mean_arm(number, norm)
    for number, norm in ((3, "none"), (3, "length"), *((number, "rms") for number in FUSED)):
        yield _mean_arm(number, norm)
        yield from _learned_arms(number, norm)
    yield Arm(
        LOW_RANK,
        "low-rank head on the last block, as many parameters as S2Sent on 3",
        _decoder_low_rank,
        controls=(LAST.name,),
    )


def _mean_arm(number: int, norm: str) -> Arm:
    return Arm(
        f"mean-{number}-{norm}",
        f"mean of {number} blocks, {_scaling(norm)}",
        lambda width: _scaled(BlockMean(), norm),
        learns=False,
        num_blocks=number,
        controls=(LAST.name,),
    )


def _learned_arms(number: int, norm: str) -> Iterator[Arm]:
    """Static weights and the gate that sees its input; each is compared with what is simpler."""
    controls = [LAST.name, f"mean-{number}-{norm}", LOW_RANK]
    for name, label, make in (
        ("static-blocks", "static weights a block", _static(number, norm, per_feature=False)),
        ("static-features", "static a block, feature", _static(number, norm, per_feature=True)),
        ("s2sent", "S2Sent", _decoder_gate(number, norm)),
    ):
        arm = f"{name}-{number}-{norm}"
        yield Arm(
            arm,
            f"{label}, {number} blocks, {_scaling(norm)}",
            make,
            num_blocks=number,
            controls=tuple(
                control for control in controls if control != LOW_RANK or name == "s2sent"
            ),
        )
        controls.append(arm)


def _scaling(norm: str) -> str:
    return {"none": "as they are", "rms": "each of size 1", "length": "each of length 1"}[norm]


DECODER_ARMS = {arm.name: arm for arm in _decoder_arms()}
ARMS = ENCODER_ARMS | DECODER_ARMS
