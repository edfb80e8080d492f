"""The encoders of a seed of twins: which ones are trained, from what, in which order.

    tower_a, tower_b    SimCSE on single texts, from the backbone, with two seeds
    simcse_a, simcse_b  each goes on with the contrast of the corpus's pairs; simcse_a is "simcse",
                        and the two summed are "sum", the control that has no joint objective
    tncse, jtcse        both towers go on together, on the same pairs
    distilled           tower_a goes on towards the cosines and directions of jtcse's sum

Everything after the towers has the same steps, batches and learning rate. A cell is a seed with or
without a selector in each tower; all its encoders share both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sentence_transformers import SentenceTransformer

from s2sent.training.evaluation.encoders import load_checkpoint
from s2sent.training.experiments.arms.configurations import S2SENT
from s2sent.training.experiments.engine import Arm
from s2sent.training.join import joined
from s2sent.training.recipe.recipe import Recipe

PAIRS = ("wikisplit", "pan_paraphrase")  # they stand in for the paper's round-trip translations
SECOND_TOWER_SEED = 1000  # added to a cell's seed
SELECTOR_RATE = 3e-3  # high enough for fusion weights to change
MAX_SEQ_LENGTH = 128  # tokens that the encoders read; in training 32

# What is scored: a label, and whose checkpoints it is.
ARMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "simcse": ("SimCSE, one tower", ("simcse_a",)),
    "sum": ("two SimCSE towers, summed", ("simcse_a", "simcse_b")),
    "tncse": ("TNCSE", ("tncse",)),
    "jtcse": ("JTCSE", ("jtcse",)),
    "distilled": ("JTCSE-D, distilled into one", ("distilled",)),
}
LABELS = {arm: label for arm, (label, _) in ARMS.items()}
CONTROL = "sum"


@dataclass(frozen=True)
class Plan:
    """What all cells share."""

    backbone: str
    num_ca_layers: int
    steps: int  # of the towers, and again of everything after them
    batch_size: int
    corpus: str = "wikisplit"  # of the towers
    learning_rate: float = 3e-5
    max_seq_length: int = 32
    precision: Literal["fp32", "bf16"] = "bf16"


@dataclass(frozen=True)
class TwinCell:
    """A seed, with selectors or without, and the folder of its checkpoints."""

    plan: Plan
    seed: int
    selector: bool
    folder: Path

    def checkpoint(self, run: str) -> Path:
        """The folder of a run's encoder."""
        return self.folder / f"{run}.checkpoint"

    def recipes(self) -> dict[str, Recipe]:
        """The recipe of every run, in an order in which each finds what it begins from."""
        plan = self.plan
        tower_a, tower_b, jtcse = map(str, map(self.checkpoint, ("tower_a", "tower_b", "jtcse")))
        # Every arm reads as many rows as it has steps, so a teacher need not embed the others.
        limit = -(-plan.steps * plan.batch_size // len(PAIRS)) + plan.batch_size
        pairs = [{"source": source, "limit": limit} for source in PAIRS]

        def after(tower: str, **objective: Any) -> dict[str, Any]:
            joint = {"selector": None} if objective["name"] == "jtcse" else {}  # the towers' own
            return {"backbone": {"name": tower}, "corpus": pairs, "objective": objective, **joint}

        joint = {"name": "jtcse", "second_tower": tower_b}
        patches: dict[str, dict[str, Any]] = {
            "tower_a": {},
            "tower_b": {"seed": self.seed + SECOND_TOWER_SEED},
            "simcse_a": after(tower_a, name="supervised"),
            "simcse_b": after(tower_b, name="supervised"),
            "tncse": after(tower_a, **joint, cross_attention=False),
            "jtcse": after(tower_a, **joint, num_ca_layers=plan.num_ca_layers),
            "distilled": after(
                tower_a, name="pair_distillation", teachers=[jtcse], direction_weight=1.0
            ),
        }
        return {run: Arm(run, patch).recipe(self._table(), run) for run, patch in patches.items()}

    def _table(self) -> dict[str, Any]:
        """The recipe of the first tower."""
        plan = self.plan
        return {
            "seed": self.seed,
            "backbone": {"name": plan.backbone, "max_seq_length": MAX_SEQ_LENGTH},
            "corpus": [{"source": plan.corpus}],
            "objective": {"name": "simcse"},
            "training": {
                "steps": plan.steps,
                "batch_size": plan.batch_size,
                "learning_rate": plan.learning_rate,
                "selector_learning_rate": SELECTOR_RATE if self.selector else 0.0,
                "max_seq_length": plan.max_seq_length,
                "eval_every": plan.steps,
                "precision": plan.precision,
            },
            "selector": S2SENT.selector if self.selector else None,
        }

    def encoder(self, *runs: str) -> SentenceTransformer:
        """The encoder of a run, or two runs' encoders summed."""
        folders = [self.checkpoint(run) for run in runs]
        return load_checkpoint(folders[0]) if len(folders) == 1 else joined(*map(str, folders))
