"""The arms, budgets and recipes of the decoder experiment.

On a frozen backbone the arms are those of `training.frozen.arms`; with low-rank updates they are
the selectors below. An encoder has the frozen part alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from s2sent.model.artifact.template import CleanUp
from s2sent.training.bfloat16 import has_bfloat16
from s2sent.training.frozen.arms import ARMS, DECODER_ARMS, ENCODER_ARMS
from s2sent.training.frozen.experiment import Plan
from s2sent.training.frozen.setting import Reading
from s2sent.training.frozen.train import Objective, Schedule
from s2sent.training.recipe.recipe import CorpusPart, Recipe, recipe_from

TEMPLATE = "sfp"
CLEAN_UP: CleanUp = Reading.clean_up  # with low-rank updates as when it is frozen
RATES = (1e-3, 1e-2)  # of which seed 0 chooses one for each frozen arm
BATCH_SIZE = 64  # pairs, of a frozen run
DEV_PAIRS = 60  # scored before and after low-rank updates, where nothing is chosen but these two
DROPPED = "length"  # a scaling of frozen arms; a mean of blocks is the same with rms

GATE = {"preset": "decoder"}
MEAN = {"spatial_selection": "avg", "input_norm": "rms"}
# The heads that are trained with low-rank updates: a label and the selector of the recipe.
LORA_ARMS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "last": ("last block", None),
    "s2sent-3": ("S2Sent, 3 blocks", {**GATE, "num_blocks": 3}),
    "mean-3": ("mean of 3 blocks", {**MEAN, "num_blocks": 3}),
    "static-blocks-3": (
        "static weights a block, 3 blocks",
        {**GATE, "num_blocks": 3, "static": "blocks"},
    ),
    "static-features-3": (
        "static weights a block and feature, 3 blocks",
        {**GATE, "num_blocks": 3, "static": "features"},
    ),
    "s2sent-6": ("S2Sent, 6 blocks", {**GATE, "num_blocks": 6}),
    "s2sent-12": ("S2Sent, 12 blocks", {**GATE, "num_blocks": 12}),
    "s2sent-3-none": (
        "S2Sent, 3 blocks as they are",
        {**GATE, "num_blocks": 3, "input_norm": "none"},
    ),
    "mean-4": ("mean of 4 blocks", {**MEAN, "num_blocks": 4}),
}
OURS = "s2sent-3"
GATE_RATE = 3e-3
# Static weights are logits themselves: at the gate's rate 40 steps move them by 0.1 at most.
STATIC_RATE = 0.1


@dataclass(frozen=True)
class DecoderBudget:
    """How long runs are; ``pairs`` are those of the training corpus."""

    pairs: int
    frozen_steps: int
    frozen_seeds: tuple[int, ...]
    lora_steps: int
    lora_batch: int  # pairs
    lora_seeds: tuple[int, ...]


BUDGETS = {
    "smoke": DecoderBudget(20, 4, (1, 2), 1, 4, (1,)),
    "short": DecoderBudget(1000, 200, (1, 2, 3, 4, 5), 60, 24, (1, 2, 3)),
    "full": DecoderBudget(5000, 2000, (1, 2, 3, 4, 5), 1000, 48, (1, 2, 3)),
}


def corpus_of(budget: DecoderBudget) -> tuple[CorpusPart, ...]:
    """Short texts, since a decoder reads each inside a template: eight captions of ten pairs."""
    shares = {"captions": 8, "wikisplit": 1, "pan_paraphrase": 1}
    return tuple(
        CorpusPart(source=source, limit=budget.pairs * share // 10)
        for source, share in shares.items()
    )


def reading_of(*, causal: bool, blocks: int) -> Reading | None:
    """How the frozen backbone is read; an encoder is pooled by its mean."""
    return Reading.inside(TEMPLATE, blocks) if causal else None


def frozen_plan(budget: DecoderBudget, seeds: Sequence[int], *, causal: bool, blocks: int) -> Plan:
    """The frozen runs at full depth: every arm that the backbone has blocks for."""
    names = DECODER_ARMS if causal else ENCODER_ARMS
    objectives: tuple[Objective, ...] = ("contrastive", "sfp") if causal else ("contrastive",)
    return Plan(
        exits=(blocks,),
        seeds=seeds or budget.frozen_seeds,
        schedule=Schedule(budget.frozen_steps, 0.0, max(1, budget.frozen_steps // 4), BATCH_SIZE),
        rates=RATES,
        arms=[
            name for name in names if ARMS[name].num_blocks <= blocks and not name.endswith(DROPPED)
        ],
        objectives=objectives,
    )


@dataclass(frozen=True)
class LoraRun:
    """One run with low-rank updates, and where its checkpoint is until it is scored."""

    backbone: str
    arm: str
    seed: int
    steps: int
    budget: DecoderBudget
    test_pairs: int
    folder: Path
    bf16: bool = field(default_factory=has_bfloat16)  # matrix products of training and scoring

    @property
    def key(self) -> dict[str, Any]:
        """What a line of results is the result of."""
        return {
            "backbone": self.backbone,
            "arm": self.arm,
            "seed": self.seed,
            "steps": self.steps,
            "batch_size": self.budget.lora_batch,
            "pairs": self.budget.pairs,
            "pairs_per_task": self.test_pairs,
            "bf16": self.bf16,
            "gate_rate": self.gate_rate,
        }

    @property
    def has_gate(self) -> bool:
        """Whether fusion weights are trained."""
        selector = LORA_ARMS[self.arm][1]
        return selector is not None and selector.get("spatial_selection") != "avg"

    @property
    def gate_rate(self) -> float | None:
        """The rate at which fusion weights are trained; None where they are not."""
        is_static = "static" in (LORA_ARMS[self.arm][1] or {})
        return (STATIC_RATE if is_static else GATE_RATE) if self.has_gate else None

    @property
    def checkpoint(self) -> Path:
        """The folder of the trained encoder."""
        return self.folder / f"{self.arm}.{self.steps}.seed{self.seed}.checkpoint"

    def recipe(self) -> Recipe:
        """CSE-SFP with the other text of a pair as positive; arms differ in the selector alone.

        Its rate is that of its kind.
        """
        selector = LORA_ARMS[self.arm][1]
        table: dict[str, Any] = {
            "seed": self.seed,
            "backbone": {
                "name": self.backbone,
                "template": TEMPLATE,
                "pooling": "rep1",
                "clean_up": CLEAN_UP,
            },
            "corpus": [
                {"source": part.source, "limit": part.limit} for part in corpus_of(self.budget)
            ],
            "objective": {"name": "sfp", "examples": "pairs"},
            "training": {
                "steps": self.steps,
                "batch_size": self.budget.lora_batch,
                "learning_rate": 2e-4,
                "selector_learning_rate": self.gate_rate or GATE_RATE,
                "warmup_steps": self.steps // 10,
                "max_seq_length": 32,
                "eval_every": self.steps,
                "dev_pairs": DEV_PAIRS,
                "precision": "bf16" if self.bf16 else "fp32",
                "lora_rank": 16,
            },
        }
        return recipe_from(table | ({"selector": selector} if selector else {}), "table sfp")


def lora_runs(
    backbone: str,
    budget: DecoderBudget,
    *,
    blocks: int,
    seeds: Sequence[int],
    steps: int | None,
    test_pairs: int,
    folder: Path,
) -> list[LoraRun]:
    """Every arm of a seed before the next seed; none with 0 steps."""
    length = budget.lora_steps if steps is None else steps
    return [
        LoraRun(backbone, arm, seed, length, budget, test_pairs, folder)
        for seed in (seeds or budget.lora_seeds if length else ())
        for arm, (_, selector) in LORA_ARMS.items()
        if (selector or {}).get("num_blocks", 1) <= blocks
    ]
