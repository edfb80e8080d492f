"""The arms that are compared on a frozen backbone: S2Sent's selector and its controls."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from s2sent.model.network.selector_config import SelectorConfig
from s2sent.training.experiments.frozen.heads import (
    BlockMean,
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
SCALINGS = {"none": "as they are", "rms": "each of size 1", "length": "each of length 1"}

Make = Callable[[int], nn.Module]  # a head of a width


@dataclass(frozen=True)
class Arm:
    """One way to make an embedding of the last blocks up to a depth; ``make`` takes the width.

    The tables compare it with its ``controls``.
    """

    name: str
    label: str
    make: Make
    learns: bool = True
    num_blocks: int = NUM_BLOCKS
    controls: tuple[str, ...] = ()


def blocks_of(arm: Arm, depth: int) -> range:
    """The numbers of the blocks that an arm gets at a depth."""
    return range(depth - arm.num_blocks + 1, depth + 1)


def _scaled(make: Make, norm: str) -> Make:
    return make if norm == "none" else lambda width: Scaled(make(width), norm)


def _gate(preset: str, num_blocks: int, **options: str) -> Make:
    return lambda width: SelectorHead(
        SelectorConfig.preset(preset, width=width, num_blocks=num_blocks, **options)
    )


def _static(num_blocks: int, *, per_feature: bool) -> Make:
    return lambda width: StaticHead(num_blocks, width, per_feature=per_feature)


def _low_rank(gate: Make) -> Make:
    """Of as many parameters as a gate."""
    return lambda width: LowRankHead(width, rank_with(num_parameters(gate(width)), width))


def _mean(width: int) -> nn.Module:
    return BlockMean()


LAST = Arm("last", "last block", _mean, learns=False, num_blocks=1)
_LOGITS = _gate("default", NUM_BLOCKS, weight_norm="softmax_logits")
ENCODER_CONTROLS = (
    LAST,
    Arm("mean", "fixed mean of the three blocks", _mean, learns=False),
    Arm(
        "static-blocks",
        "static weights, one per block",
        _static(NUM_BLOCKS, per_feature=False),
    ),
    Arm(
        "static-features",
        "static weights, one per block and feature",
        _static(NUM_BLOCKS, per_feature=True),
    ),
    Arm("low-rank", "low-rank head on the last block, as many parameters", _low_rank(_LOGITS)),
    Arm(
        "s2sent-eq4",
        "S2Sent, Eq. 4 (softmax over sigmoids)",
        _gate("default", NUM_BLOCKS, weight_norm="softmax_blocks"),
    ),
)
S2SENT = Arm(
    "s2sent",
    "S2Sent, softmax over logits",
    _LOGITS,
    controls=tuple(arm.name for arm in ENCODER_CONTROLS),
)
ENCODER_ARMS = {arm.name: arm for arm in (*ENCODER_CONTROLS, S2SENT)}


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
        _scaled(_low_rank(_gate("decoder", FUSED[0], input_norm="rms")), "rms"),
        controls=(LAST.name,),
    )


def _mean_arm(number: int, norm: str) -> Arm:
    return Arm(
        f"mean-{number}-{norm}",
        f"mean of {number} blocks, {SCALINGS[norm]}",
        _scaled(_mean, norm),
        learns=False,
        num_blocks=number,
        controls=(LAST.name,),
    )


def _learned_arms(number: int, norm: str) -> Iterator[Arm]:
    """Static weights and the gate that sees its input; each is compared with what is simpler."""
    controls = [LAST.name, f"mean-{number}-{norm}", LOW_RANK]
    for name, label, make in (
        ("static-blocks", "static weights a block", _static(number, per_feature=False)),
        ("static-features", "static a block, feature", _static(number, per_feature=True)),
        ("s2sent", "S2Sent", _gate("decoder", number, input_norm=norm)),
    ):
        own = name == "s2sent"  # which scales its input by itself, and has as many parameters
        yield Arm(
            f"{name}-{number}-{norm}",
            f"{label}, {number} blocks, {SCALINGS[norm]}",
            make if own else _scaled(make, norm),
            num_blocks=number,
            controls=tuple(each for each in controls if own or each != LOW_RANK),
        )
        controls.append(f"{name}-{number}-{norm}")


DECODER_ARMS = {arm.name: arm for arm in _decoder_arms()}
ARMS = ENCODER_ARMS | DECODER_ARMS
