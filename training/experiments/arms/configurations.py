"""The paper's tables and a control of ours, and their configurations as patches of a recipe.

A group is a backbone and an objective; within it configurations differ in their patch alone. The
same configuration in two tables has one name and is run once. "1d" averages the blocks and gates
the average, "2d" weighs their stack, "avg" only averages (S2Sent, arXiv 2508.18164, section 3).
Over one block the paper's softmax is always 1, so the gate's own value is used there
(``weight_norm = "none"``), which makes 1d and 2d the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation import transfer
from s2sent.training.evaluation.results.published import TABLE_2, TABLE_3, TABLE_4, Group
from s2sent.training.evaluation.sts import AVERAGE
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
}
OBJECTIVES["prompt-mean"] = {**OBJECTIVES["prompt"], "backbone": {"pooling": "mean"}}
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


@dataclass(frozen=True)
class TableRow:
    """A line of a table: a configuration, and the one that it is tested against, if any."""

    label: str
    name: str
    base: str


@dataclass(frozen=True)
class Experiment:
    """A table or a control, with notes on how it is run here."""

    key: str
    title: str
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    orders: tuple[tuple[str, str], ...] = ()  # of two rows the one that the paper has above
    objectives: tuple[str, ...] = tuple(OBJECTIVES)
    transfer: bool = False  # needs the transfer tasks
    printed: Mapping[Group, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    printed_scores: str = ""  # what the paper's numbers are of

    @property
    def configurations(self) -> list[str]:
        """The names of the configurations to run, the rows' bases included."""
        names = [row.base for row in self.rows if row.base] + [row.name for row in self.rows]
        return [*dict.fromkeys(names)]


def _rows(base: str, rows: Mapping[str, str]) -> tuple[TableRow, ...]:
    """Rows by label, tested against one of them."""
    return tuple(
        TableRow(label, name, "" if name == base else base) for label, name in rows.items()
    )


_EVERY = (
    Experiment(
        "table 2",
        "Table 2: which blocks, and how they are put together",
        _rows(
            "last1",
            {
                "Last1 base": "last1",
                "Last1 1D": "last1-1d",
                "Last3 avg": "last3-avg",
                "Last3 avg+1D": "last3-1d",
                "Last3 2D": "last3-2d",
                "Last6 avg": "last6-avg",
                "Last6 avg+1D": "last6-1d",
                "Last6 2D": "last6-2d",
                "Last3 2D, started near the last block": "last3-2d-bias3",
                "Last3 2D, any weight, started at the last block": "last3-2d-at-last",
            },
        ),
        ("Last1 1D uses the gate's own value: a softmax over one block is always 1.",),
        orders=(
            ("last3-2d", "last3-1d"),
            ("last3-1d", "last3-avg"),
            ("last6-2d", "last6-1d"),
            ("last6-1d", "last6-avg"),
        ),
        printed=TABLE_2,
        printed_scores="STS-B / SICK-R / average",
    ),
    Experiment(
        "table 3",
        "Table 3: CLS or mean pooling, without and with the selector",
        (
            *_rows("cls-last1-mlp", {"CLS, off": "cls-last1-mlp", "CLS, on": "cls-last3-2d-mlp"}),
            *_rows("last1", {"mean, off": "last1", "mean, on": "last3-2d"}),
            *_rows(
                "cls-last1",
                {
                    "CLS trained without SimCSE's head, off": "cls-last1",
                    "CLS trained without SimCSE's head, on": "cls-last3-2d",
                },
            ),
        ),
        (
            "Tests are against the same pooling without the selector.",
            "CLS is trained with SimCSE's head, a Linear + tanh that evaluation leaves out "
            "(mlp_only_train).",
        ),
        objectives=("simcse",),
        printed=TABLE_3,
        printed_scores="average",
    ),
    Experiment(
        "table 4",
        "Table 4: transfer tasks",
        _rows("last1", {"Last1 base": "last1", "Last3 2D": "last3-2d"}),
        transfer=True,
        printed=TABLE_4,
        printed_scores=" / ".join((*transfer.TASKS, AVERAGE)),
    ),
    Experiment(
        "control x1",
        "X1: does the gate need its input?",
        _rows(
            "last3-2d",
            {
                "fixed: the mean of the last 3": "last3-avg",
                "static: a weight per block": "last3-2d-static-blocks",
                "static: a weight per block and feature": "last3-2d-static-features",
                "S2Sent: weights from the input": "last3-2d",
            },
        ),
        ("Tests are against S2Sent.",),
    ),
)
EXPERIMENTS = {experiment.key: experiment for experiment in _EVERY}
OTHERS = ("table jtcse", "table sfp", "control x4")  # with runs of their own
PAPER_TABLES = ("table 2", "table 3", "table 4")


def as_printed(keys: Sequence[str]) -> list[Experiment]:
    """The paper's tables, or those with these keys, without our rows; Last3 2D by each preset.

    Raises `ConfigError` for an unknown key, and for one that has no row of the paper's.
    """
    found = []
    for experiment in chosen(keys or PAPER_TABLES):
        printed = {name for rows in experiment.printed.values() for name in rows}
        rows = [each for row in experiment.rows if row.name in printed for each in _by_preset(row)]
        if not rows:
            raise ConfigError(f"--paper runs what the paper has: leave {experiment.key} out.")
        found.append(replace(experiment, rows=tuple(rows)))
    return found


def _by_preset(row: TableRow) -> list[TableRow]:
    """A row of Last3 2D for each preset of the selector; another one as it is."""
    if row.name not in BY_PRESET:
        return [row]
    others = [
        replace(row, label=f"{row.label}, {label}", name=f"{row.name}-{preset}")
        for preset, label in PRESETS.items()
    ]
    return [replace(row, label=f"{row.label}, preset default"), *others]


def chosen(keys: Sequence[str]) -> list[Experiment]:
    """The experiments with these keys; raises `ConfigError` for an unknown key."""
    for key in keys:
        if key not in EXPERIMENTS:
            every = ", ".join([*EXPERIMENTS, *OTHERS])
            raise ConfigError(f"There is no {key}: choose from {every}.")
    return [EXPERIMENTS[key] for key in dict.fromkeys(keys)]
