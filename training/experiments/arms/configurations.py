"""The configurations that the paper's tables and ours compare.

A configuration is what a run differs in from its group's recipe; a group is a backbone and an
objective. The same configuration in two tables has one name and is run once. "1d" averages the
blocks and gates the average, "2d" weighs their stack, "avg" only averages (S2Sent, arXiv
2508.18164, section 3). Over one block the paper's softmax is always 1, so the gate's own value is
used there (``weight_norm = "none"``), which makes 1d and 2d the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from s2sent.training.recipe.recipe import Recipe, recipe_from

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


@dataclass(frozen=True)
class Configuration:
    """One configuration: its name, its label in tables, and its part of the recipe.

    ``printed`` is the name under which the paper's numbers are, where it is another.
    """

    name: str
    label: str
    selector: Table | None = None  # None trains the backbone alone
    backbone: Table = field(default_factory=dict)
    selector_rate: int = 1  # the selector's learning rate over the backbone's
    objective: Table = field(default_factory=dict)
    printed: str = ""

    @property
    def num_blocks(self) -> int:
        """How many blocks a backbone must have."""
        return 1 if self.selector is None else int(self.selector["num_blocks"])

    def recipe(
        self,
        *,
        objective: str,
        backbone: str,
        budget: str,
        seed: int,
        steps: int | None = None,
        corpus: str = "wikisplit",
        family: str = "bert",
    ) -> Recipe:
        """The recipe of one run; ``steps`` replaces the budget's. Raises `ConfigError`.

        ``family`` is the backbone's ``model_type``, which chooses the templates of a prompt.
        """
        group, size = OBJECTIVES[objective], BUDGETS[budget]
        training = {**group["training"], **size.training}
        if size.selector_rate and self.selector is not None:
            training["selector_learning_rate"] = size.selector_rate
        if self.selector_rate != 1:
            training["selector_learning_rate"] = self.selector_rate * training["learning_rate"]
        if steps is not None:
            training["steps"] = steps
        table: dict[str, Any] = {
            "seed": seed,
            "backbone": {"name": backbone, **group.get("backbone", {}), **self.backbone},
            "corpus": [{"source": corpus, "limit": size.limit}],
            "objective": {**group["objective"], **self.objective},
            "training": training,
        }
        if table["objective"]["name"] == "prompt" and family in TEMPLATES:
            table["objective"]["templates"] = TEMPLATES[family]
        if self.selector is not None:
            table["selector"] = dict(self.selector)
        return recipe_from(table, self.name)

    def with_preset(self, preset: str) -> "Configuration":
        """The same with a preset of the selector, and m = 4 and r = 12."""
        return replace(
            self,
            name=f"{self.name}-{preset}",
            label=f"{self.label}, {PRESETS[preset]}",
            selector={"num_frequencies": 4, "reduction": 12, **(self.selector or {})}
            | {"preset": preset},
            printed=self.name,
        )


_GATE = {"spatial_selection": "1d", "weight_norm": "none"}
_AVERAGE = {"spatial_selection": "avg"}
_LAST3, _LAST6 = {"num_blocks": 3}, {"num_blocks": 6}
_CLS = {"pooling": "cls"}
_HEAD = {"projection": True}  # SimCSE's mlp_only_train: left out in evaluation
CONFIGURATIONS = {
    each.name: each
    for each in (
        Configuration("last1", "Last1, the backbone alone"),
        Configuration("last1-1d", "Last1 1D", {"num_blocks": 1, **_GATE}),
        Configuration("last3-avg", "Last3 avg", {**_LAST3, **_AVERAGE}),
        Configuration("last3-1d", "Last3 1D", {**_LAST3, **_GATE}),
        Configuration("last3-2d", "Last3 2D", _LAST3),
        Configuration("last6-avg", "Last6 avg", {**_LAST6, **_AVERAGE}),
        Configuration("last6-1d", "Last6 1D", {**_LAST6, **_GATE}),
        Configuration("last6-2d", "Last6 2D", _LAST6),
        Configuration("last3-2d-bias3", "Last3 2D, initial_bias 3", {**_LAST3, "initial_bias": 3}),
        Configuration(  # the default model's
            "last3-2d-at-last",
            "Last3 2D, softmax over logits, started at the last block",
            {**_LAST3, "weight_norm": "softmax_logits", "initial_bias": 3},
            selector_rate=100,
        ),
        Configuration(
            "last3-2d-static-blocks", "Last3 2D, static blocks", {**_LAST3, "static": "blocks"}
        ),
        Configuration(
            "last3-2d-static-features",
            "Last3 2D, static features",
            {**_LAST3, "static": "features"},
        ),
        Configuration("cls-last1", "CLS, the backbone alone", None, _CLS),
        Configuration("cls-last3-2d", "CLS, Last3 2D", _LAST3, _CLS),
        Configuration("cls-last1-mlp", "CLS, the backbone alone", None, _CLS, objective=_HEAD),
        Configuration("cls-last3-2d-mlp", "CLS, Last3 2D", _LAST3, _CLS, objective=_HEAD),
    )
}
