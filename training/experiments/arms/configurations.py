"""The configurations that the paper's tables and ours compare, as patches of a recipe.

A group is a backbone and an objective; within it configurations differ in their patch alone. The
same configuration in two tables has one name and is run once. "1d" averages the blocks and gates
the average, "2d" weighs their stack, "avg" only averages (S2Sent, arXiv 2508.18164, section 3).
Over one block the paper's softmax is always 1, so the gate's own value is used there
(``weight_norm = "none"``), which makes 1d and 2d the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from s2sent.training.experiments.engine import Arm, Series
from s2sent.training.recipe.recipe import Recipe

Table = Mapping[str, Any]

OBJECTIVES: dict[str, Table] = {
    "simcse": {"objective": {"name": "simcse"}, "training": {"learning_rate": 3e-5}},
    # The paper pools every model by its mean; PromptBERT itself pools at the mask. Both are here.
    "prompt": {
        "objective": {"name": "prompt"},
        "backbone": {"pooling": "mask"},
        "training": {"learning_rate": 1e-5},
    },
    "prompt-mean": {
        "objective": {"name": "prompt"},
        "backbone": {"pooling": "mean"},
        "training": {"learning_rate": 1e-5},
    },
}
# PromptBERT's templates for a family of backbones; its others are those of the objective.
TEMPLATES = {
    "roberta": ["This sentence : ' {} ' means [MASK].", "The sentence : ' {} ' means [MASK]."],
}


@dataclass(frozen=True)
class Budget:
    """The length of a run: keys of the recipe's [training], the seeds, a limit on corpus rows."""

    training: Table
    seeds: tuple[int, ...]
    limit: int = 0  # rows of the corpus, at most; 0 takes all
    selector_rate: float = 0.0  # the selector's learning rate; 0 means the backbone's


PAPER = "paper"  # the budget of `reproduce --paper`
# The paper's protocol: one pass over the corpus, dev scored every 125 steps.
_FULL = Budget({"steps": 0, "eval_every": 125, "precision": "bf16"}, (1, 2, 3, 4, 5, 6, 7))
BUDGETS = {
    "smoke": Budget({"steps": 4, "batch_size": 8, "eval_every": 2}, (1,), limit=200),
    # For a backbone that is tuned already; long enough, and the gate's rate high enough, for fusion
    # weights to change.
    "short": Budget(
        {"steps": 1000, "eval_every": 100, "precision": "bf16"},
        (1, 2, 3, 4, 5),
        selector_rate=3e-3,
    ),
    "full": _FULL,
    PAPER: replace(_FULL, limit=1_000_000),
}

PRESETS = {  # beside the default one
    "paper": "the paper's equations literally (preset paper)",
    "official": "the authors' code (preset official)",
}
_GATE = {"spatial_selection": "1d", "weight_norm": "none"}
_AVERAGE = {"spatial_selection": "avg"}
_LAST3, _LAST6 = {"num_blocks": 3}, {"num_blocks": 6}
_CLS = {"backbone": {"pooling": "cls"}}
_HEAD = {"objective": {"projection": True}}  # SimCSE's mlp_only_train: left out in evaluation
_PLAIN: dict[str, Table] = {
    "last1": {},  # the backbone alone
    "last1-1d": {"selector": {"num_blocks": 1, **_GATE}},
    "last3-avg": {"selector": {**_LAST3, **_AVERAGE}},
    "last3-1d": {"selector": {**_LAST3, **_GATE}},
    "last3-2d": {"selector": _LAST3},
    "last6-avg": {"selector": {**_LAST6, **_AVERAGE}},
    "last6-1d": {"selector": {**_LAST6, **_GATE}},
    "last6-2d": {"selector": _LAST6},
    "last3-2d-bias3": {"selector": {**_LAST3, "initial_bias": 3}},
    "last3-2d-at-last": {  # as the default model's
        "selector": {**_LAST3, "weight_norm": "softmax_logits", "initial_bias": 3},
        "training": {"selector_learning_rate": 3e-3},
    },
    "last3-2d-static-blocks": {"selector": {**_LAST3, "static": "blocks"}},
    "last3-2d-static-features": {"selector": {**_LAST3, "static": "features"}},
    "cls-last1": _CLS,
    "cls-last3-2d": {"selector": _LAST3, **_CLS},
    "cls-last1-mlp": {**_CLS, **_HEAD},
    "cls-last3-2d-mlp": {"selector": _LAST3, **_CLS, **_HEAD},
}
BY_PRESET = ("last3-2d", "cls-last3-2d-mlp")  # run by every preset with the paper's settings
_OF_THE_PAPER = {"num_frequencies": 4, "reduction": 12}
CONFIGURATIONS: dict[str, Table] = _PLAIN | {
    f"{name}-{preset}": {
        **_PLAIN[name],
        "selector": {**_OF_THE_PAPER, **_PLAIN[name]["selector"], "preset": preset},
    }
    for name in BY_PRESET
    for preset in PRESETS
}


def num_blocks(name: str) -> int:
    """How many blocks a configuration needs a backbone to have."""
    return int(CONFIGURATIONS[name].get("selector", {}).get("num_blocks", 1))


def recipe_of(
    name: str, series: Series, seed: int, *, objective: str, family: str = "bert"
) -> Recipe:
    """The recipe of one run of a series. Raises `ConfigError`.

    ``family`` is the backbone's ``model_type``, which chooses the templates of a prompt.
    """
    group, size = OBJECTIVES[objective], BUDGETS[series.budget]
    training = {**group["training"], **size.training}
    if size.selector_rate and "selector" in CONFIGURATIONS[name]:
        training["selector_learning_rate"] = size.selector_rate
    if series.steps is not None:
        training["steps"] = series.steps
    prompted = group["objective"]["name"] == "prompt" and family in TEMPLATES
    templates = {"templates": TEMPLATES[family]} if prompted else {}
    table = {
        "seed": seed,
        "backbone": {"name": series.backbone, **group.get("backbone", {})},
        "corpus": [{"source": series.corpus, "limit": size.limit}],
        "objective": {**group["objective"], **templates},
        "training": training,
    }
    return Arm(name, CONFIGURATIONS[name]).recipe(table, name)
