"""The arms of control X4, and the recipe of a run: one arm, one seed, one number of steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s2sent.model.network.selector import S2SentSelector
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.training.recipe.recipe import TRAINING_OPTIONS, Recipe, recipe_from

DIMENSIONS = (32, 64, 128, 256)  # and the full width

SELECTOR = {
    "num_blocks": 3,
    "reduction": 12,
    "weight_norm": "softmax_logits",
    "initial_bias": 3.0,  # at full depth, as the default model's; exits start from the mean
}
LAST = {"num_blocks": 1, "spatial_selection": "avg"}
ARMS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "last": ("last block alone", None),
    "mean": ("mean of the last min(3, k)", {"num_blocks": 3, "spatial_selection": "avg"}),
    "static": ("static weights, one per block", {**SELECTOR, "static": "blocks"}),
    "s2sent": ("S2Sent", SELECTOR),
    "low-rank": ("low-rank head on the last block", LAST),
    "s2sent-low-rank": ("low-rank head on S2Sent", SELECTOR),
}
GATED = ("static", "s2sent", "s2sent-low-rank")  # arms whose weights of blocks are trained
HEADED = ("low-rank", "s2sent-low-rank")  # arms whose exits have a low-rank head
COMPARED = {  # each with what it is tested against
    "s2sent": ("last", "mean", "static", "low-rank"),
    "s2sent-low-rank": ("low-rank",),
}


def head_rank(width: int) -> int:
    """The rank of the low-rank head that has about as many parameters as a gate."""
    options = {key: value for key, value in SELECTOR.items() if key not in TRAINING_OPTIONS}
    gate = S2SentSelector(SelectorConfig.preset("default", width=width, **options))
    return max(1, round(sum(each.numel() for each in gate.parameters()) / (2 * width)))


@dataclass(frozen=True)
class ExitRun:
    """One run: what is trained, and where its checkpoint is until it is scored."""

    backbone: str
    depths: tuple[int, ...]
    arm: str
    seed: int
    steps: int
    corpus: str
    batch_size: int
    folder: Path
    head_rank: int  # of the low-rank head

    @property
    def key(self) -> dict[str, Any]:
        """What a line of results is the result of."""
        return {
            "backbone": self.backbone,
            "depths": list(self.depths),
            "corpus": self.corpus,
            "batch_size": self.batch_size,
            "steps": self.steps,
            "seed": self.seed,
            "arm": self.arm,
        }

    @property
    def checkpoint(self) -> Path:
        """The folder of the trained encoder."""
        return self.folder / f"{self.arm}.{self.steps}.seed{self.seed}.checkpoint"

    def recipe(self) -> Recipe:
        """Distillation of the backbone's own similarities into every exit.

        All arms have the same data in the same order, and the same rates. A corpus of fewer texts
        than ``steps * batch_size`` is gone over again.
        """
        _, selector = ARMS[self.arm]
        elastic: dict[str, Any] = {"depths": [*self.depths], "dimensions": [*DIMENSIONS]}
        if self.arm in HEADED:
            elastic |= {"project": True, "project_rank": self.head_rank}
        table: dict[str, Any] = {
            "seed": self.seed,
            "backbone": {"name": self.backbone},
            "corpus": [{"source": self.corpus, "limit": self.steps * self.batch_size}],
            "elastic": elastic,
            "objective": {
                "name": "distillation",
                "teachers": [self.backbone],
                "contrastive_weight": 0,
                "error_weight": 4,
                "dropout": False,
            },
            "training": {
                "steps": self.steps,
                "batch_size": self.batch_size,
                "learning_rate": 1e-4,
                "selector_learning_rate": 5e-3,
                "warmup_steps": min(50, self.steps // 6),
                "max_seq_length": 48,
                "group_by_length": True,
                "eval_every": max(1, self.steps // 2),
                "dev_pairs": 500,
                "precision": "bf16",
            },
        }
        return recipe_from(table | ({"selector": selector} if selector else {}), "control x4")
