"""The configurations that the paper's tables, its figures and our controls compare.

A configuration is what a run differs in from its group's recipe; a group is a backbone and an
objective. The same configuration in two tables has one name and is run once. "1d" averages the
blocks and gates the average, "2d" weighs their stack, "avg" only averages (S2Sent, arXiv
2508.18164, section 3). Over one block the paper's softmax is always 1, so the gate's own value is
used there (``weight_norm = "none"``), which makes 1d and 2d the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from s2sent.training.errors import ConfigError
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
PAPER_TRAINING = {"steps": 0, "eval_every": 125, "precision": "bf16"}
PAPER_SEEDS = (1, 2, 3, 4, 5, 6, 7)
BUDGETS = {
    "smoke": Budget({"steps": 4, "batch_size": 8, "eval_every": 2}, (1,), limit=200),
    # For a backbone that is tuned already; long enough, and the gate's rate high enough, for fusion
    # weights to change.
    "short": Budget(
        {"steps": 1000, "eval_every": 100, "precision": "bf16"},
        (1, 2, 3, 4, 5),
        selector_rate=3e-3,
    ),
    # The paper's protocol: one pass over the corpus, dev scored every 125 steps.
    "full": Budget(PAPER_TRAINING, PAPER_SEEDS),
    PAPER: Budget(PAPER_TRAINING, PAPER_SEEDS, limit=1_000_000),
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


def average(num_blocks: int) -> Configuration:
    """The plain average of the last blocks."""
    options = {"spatial_selection": "avg", "num_blocks": num_blocks}
    return Configuration(f"last{num_blocks}-avg", f"Last{num_blocks} avg", options)


def gate(num_blocks: int, **options: Any) -> Configuration:
    """The average of the last blocks, multiplied by one gate."""
    return _named(
        f"last{num_blocks}-1d",
        num_blocks,
        {"spatial_selection": "1d", "weight_norm": "none"},
        options,
    )


def select(num_blocks: int = 3, **options: Any) -> Configuration:
    """A weighted sum of the last blocks; for one block its gate."""
    if num_blocks == 1:
        return gate(1, **options)
    return _named(f"last{num_blocks}-2d", num_blocks, {}, options)


_ABBREVIATIONS = {"num_frequencies": "m", "reduction": "r", "initial_bias": "bias"}
_USUAL = {"num_frequencies": 4, "reduction": 12}


def _named(stem: str, num_blocks: int, kind: Table, options: Table) -> Configuration:
    """A configuration named by its options that are not `_USUAL`, so equal ones share a name."""
    named = {key: value for key, value in options.items() if _USUAL.get(key) != value}
    parts = [
        f"{_ABBREVIATIONS.get(key, key.replace('_', '') + '-')}{named[key]}"
        for key in sorted(named)
    ]
    name = "-".join([stem, *parts])
    label = stem.replace("last", "Last").replace("-", " ").replace("d", "D")
    return Configuration(
        name,
        ", ".join([label, *(f"{key} {named[key]}" for key in sorted(named))]),
        {"num_blocks": num_blocks, **kind, **named},
    )


LAST1 = Configuration("last1", "Last1, the backbone alone")
LAST1_GATE = gate(1)
LAST3_AVERAGE = average(3)
S2SENT = select(3)
NEAR_LAST = select(3, initial_bias=3)
AT_LAST = Configuration(  # the default model's
    "last3-2d-at-last",
    "Last3 2D, softmax over logits, started at the last block",
    {"num_blocks": 3, "weight_norm": "softmax_logits", "initial_bias": 3},
    selector_rate=100,
)
CLS_WITHOUT_HEAD = Configuration("cls-last1", "CLS, the backbone alone", None, {"pooling": "cls"})
CLS_S2SENT_WITHOUT_HEAD = Configuration(
    "cls-last3-2d", "CLS, Last3 2D", S2SENT.selector, {"pooling": "cls"}
)
# SimCSE's mlp_only_train: a Linear + tanh over CLS in training, left out in evaluation.
CLS, CLS_S2SENT = (
    replace(each, name=f"{each.name}-mlp", objective={"projection": True})
    for each in (CLS_WITHOUT_HEAD, CLS_S2SENT_WITHOUT_HEAD)
)
STATIC_BLOCKS = select(3, static="blocks")
STATIC_FEATURES = select(3, static="features")
AUTHORS_CODE = S2SENT.with_preset("official")

DEPTHS = (1, 3, 6, 9, 12)  # n of Fig. 6
FREQUENCIES = (1, 2, 4, 8, 16)  # m of Fig. 6
REDUCTIONS = (1, 2, 4, 8, 12, 16, 24, 32, 48)  # r of Fig. 7; the paper's own list is a picture
GRID = {(n, m): select(n, num_frequencies=m) for n in DEPTHS for m in FREQUENCIES}
BY_REDUCTION = {r: select(3, reduction=r) for r in REDUCTIONS}
SQUEEZES = {m: select(3, num_frequencies=m) for m in (0, 1, 4, 8)}  # of Fig. 5; 0 is none
SELECTOR_RATES = {
    times: Configuration(
        f"last3-2d-lr{times}",
        f"Last3 2D, selector's learning rate x {times}",
        S2SENT.selector,
        selector_rate=times,
    )
    for times in (30, 300)
}


def misfit(configuration: Configuration, *, blocks: int, width: int) -> str | None:
    """Why a configuration cannot run on a backbone of this size; None where it can."""
    options = configuration.selector
    if options is None:
        return None
    needed = options["num_blocks"]
    if needed > blocks:
        return f"it weighs {needed} blocks, and the backbone has {blocks}"
    try:
        configuration.recipe(
            objective="simcse", backbone="any", budget="short", seed=1
        ).selector_config(width)
    except ConfigError as error:
        return str(error).rstrip(".")
    return None
