"""The paper's tables and figures, and controls to them, as configurations: data, nothing is run.

S2Sent (arXiv 2508.18164). A configuration is what a run differs in from its group's recipe; the
group is a backbone and an objective. What is the same in two tables is one configuration with one
name, and is run once. "1d" averages the blocks and gates the average, "2d" weighs their stack,
"avg" only averages. Where one block is weighed the paper's softmax is always 1, so the gate's own
value is used there (``weight_norm = "none"``), which makes 1d and 2d the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from training.errors import ConfigError
from training.recipe import Recipe, recipe_from

Table = Mapping[str, Any]

OBJECTIVES: dict[str, Table] = {
    "simcse": {"objective": {"name": "simcse"}, "training": {"learning_rate": 3e-5}},
    # The paper's text pools every model by its mean; PromptBERT pools at the mask. Both are here.
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


@dataclass(frozen=True)
class Budget:
    """How much is run: ``training`` is of the recipe's table, ``limit`` is of the corpus, and
    ``latency`` is of `training.evaluation.overhead.Protocol`."""

    training: Table
    seeds: tuple[int, ...]
    limit: int = 0  # rows of the corpus, at most; 0 takes all
    latency: Table = field(default_factory=dict)


BUDGETS = {
    "smoke": Budget(
        {"steps": 4, "batch_size": 8, "eval_every": 2},
        (1,),
        limit=200,
        latency={"batch_sizes": (1,), "lengths": (32,), "warm_ups": 1, "repeats": 4},
    ),
    # What a CPU can do: a backbone that is tuned already gains what it gains within 50 steps.
    "short": Budget(
        {"steps": 50, "eval_every": 25, "precision": "bf16"},
        (1, 2, 3),
        latency={"warm_ups": 1, "repeats": 400, "seconds_per_cell": 100.0, "threads": 1},
    ),
    # The paper's protocol: once over the corpus, the best of every 125 steps.
    "full": Budget({"steps": 0, "eval_every": 125, "precision": "bf16"}, (1, 2, 3, 4, 5, 6, 7)),
}


@dataclass(frozen=True)
class Configuration:
    """One cell: its name, how it is called in tables, and its part of the recipe."""

    name: str
    label: str
    selector: Table | None = None  # None trains the backbone alone
    backbone: Table = field(default_factory=dict)
    selector_rate: int = 1  # the selector's learning rate over the backbone's

    def recipe(
        self,
        *,
        objective: str,
        backbone: str,
        budget: str,
        seed: int,
        steps: int | None = None,
        corpus: str = "wikisplit",
    ) -> Recipe:
        """The recipe of one run; ``steps`` replaces the budget's. Raises `ConfigError`."""
        group, size = OBJECTIVES[objective], BUDGETS[budget]
        training = {**group["training"], **size.training}
        if self.selector_rate != 1:
            training["selector_learning_rate"] = self.selector_rate * training["learning_rate"]
        if steps is not None:
            training["steps"] = steps
        table = {
            "seed": seed,
            "backbone": {"name": backbone, **group.get("backbone", {}), **self.backbone},
            "corpus": [{"source": corpus, "limit": size.limit}],
            "objective": dict(group["objective"]),
            "training": training,
        }
        if self.selector is not None:
            table["selector"] = dict(self.selector)
        return recipe_from(table, self.name)


@dataclass(frozen=True)
class Row:
    """A line of a table: a configuration, and the name of the one it is tested against."""

    configuration: Configuration
    base: Configuration | None
    label: str
    ours: bool = False  # not in the paper
    at: tuple[float, float] | None = None  # its place in a figure


@dataclass(frozen=True)
class Experiment:
    """A table, a figure or a control, and what to know about how it is run here."""

    key: str
    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    objectives: tuple[str, ...] = tuple(OBJECTIVES)
    transfer: bool = False  # needs the transfer tasks

    @property
    def configurations(self) -> dict[str, Configuration]:
        """What has to be run, by name, each once, the rows' bases included."""
        bases = [row.base for row in self.rows if row.base]
        needed = [*bases, *(row.configuration for row in self.rows)]
        return {configuration.name: configuration for configuration in needed}


def _average(num_blocks: int) -> Configuration:
    options = {"spatial_selection": "avg", "num_blocks": num_blocks}
    return Configuration(f"last{num_blocks}-avg", f"Last{num_blocks} avg", options)


def _gate(num_blocks: int, **options: Any) -> Configuration:
    """The average of the last blocks, gated once."""
    return _named(
        f"last{num_blocks}-1d",
        num_blocks,
        {"spatial_selection": "1d", "weight_norm": "none"},
        options,
    )


def _select(num_blocks: int = 3, **options: Any) -> Configuration:
    """The stack of the last blocks, weighed; of one block, its gate."""
    if num_blocks == 1:
        return _gate(1, **options)
    return _named(f"last{num_blocks}-2d", num_blocks, {}, options)


_SHORT = {"num_frequencies": "m", "reduction": "r", "initial_bias": "bias"}
_USUAL = {"num_frequencies": 4, "reduction": 12}


def _named(stem: str, num_blocks: int, kind: Table, options: Table) -> Configuration:
    """A configuration whose name says all it differs in, and only that: equal cells meet."""
    told = {key: value for key, value in options.items() if _USUAL.get(key) != value}
    parts = [f"{_SHORT.get(key, key.replace('_', '') + '-')}{told[key]}" for key in sorted(told)]
    name = "-".join([stem, *parts])
    label = stem.replace("last", "Last").replace("-", " ").replace("d", "D")
    return Configuration(
        name,
        ", ".join([label, *(f"{key} {told[key]}" for key in sorted(told))]),
        {"num_blocks": num_blocks, **kind, **told},
    )


LAST1 = Configuration("last1", "Last1, the backbone alone")
LAST1_GATE = _gate(1)
LAST3_AVERAGE = _average(3)
S2SENT = _select(3)
NEAR_LAST = _select(3, initial_bias=3)
AT_LAST = Configuration(  # the default model's
    "last3-2d-at-last",
    "Last3 2D, softmax over logits, started at the last block",
    {"num_blocks": 3, "weight_norm": "softmax_logits", "initial_bias": 3},
    selector_rate=10,
)
CLS = Configuration("cls-last1", "CLS, the backbone alone", None, {"pooling": "cls"})
CLS_S2SENT = Configuration("cls-last3-2d", "CLS, Last3 2D", S2SENT.selector, {"pooling": "cls"})
STATIC_BLOCKS = _select(3, static="blocks")
STATIC_FEATURES = _select(3, static="features")
AUTHORS_CODE = Configuration(
    "last3-2d-official",
    "Last3 2D as in the authors' code",
    {"preset": "official", "num_blocks": 3, "num_frequencies": 4, "reduction": 12},
)

DEPTHS = (1, 3, 6, 9, 12)  # n of Fig. 6
FREQUENCIES = (1, 2, 4, 8, 16)  # m of Fig. 6
REDUCTIONS = (1, 2, 4, 8, 12, 16, 24, 32, 48)  # r of Fig. 7; the paper's own list is a picture
GRID = {(n, m): _select(n, num_frequencies=m) for n in DEPTHS for m in FREQUENCIES}
BY_REDUCTION = {r: _select(3, reduction=r) for r in REDUCTIONS}
SQUEEZES = {m: _select(3, num_frequencies=m) for m in (0, 1, 4, 8)}  # of Fig. 5; 0 is none
SELECTOR_RATES = {
    times: Configuration(
        f"last3-2d-lr{times}",
        f"Last3 2D, selector's learning rate x {times}",
        S2SENT.selector,
        selector_rate=times,
    )
    for times in (10, 30)
}


def _rows(
    pairs: Iterable[tuple[Configuration, str]], base: Configuration | None, *, ours: bool = False
) -> tuple[Row, ...]:
    return tuple(
        Row(
            configuration,
            None if configuration == base else base,
            label or configuration.label,
            ours,
        )
        for configuration, label in pairs
    )


def _labelled(*configurations: Configuration) -> list[tuple[Configuration, str]]:
    return [(configuration, "") for configuration in configurations]


_PAPER_ROWS = [
    (LAST1, "Last1 base"),
    (LAST1_GATE, "Last1 1D"),
    (LAST3_AVERAGE, "Last3 avg"),
    (_gate(3), "Last3 avg+1D"),
    (S2SENT, "Last3 2D"),
    (_average(6), "Last6 avg"),
    (_gate(6), "Last6 avg+1D"),
    (_select(6), "Last6 2D"),
]

EXPERIMENTS = {
    experiment.key: experiment
    for experiment in (
        Experiment(
            "table 2",
            "Table 2: which blocks, and how they are put together",
            (
                *_rows(_PAPER_ROWS, LAST1),
                Row(NEAR_LAST, LAST1, "Last3 2D, started near the last block", ours=True),
                Row(AT_LAST, LAST1, "Last3 2D, any weight, started at the last block", ours=True),
            ),
            ("Last1 1D uses the gate's own value: a softmax over one block is always 1.",),
        ),
        Experiment(
            "figure 5",
            "Fig. 5: frequency selection",
            _rows(
                zip(SQUEEZES.values(), ("no squeeze", "GAP", "low4", "low8"), strict=True),
                SQUEEZES[0],
            ),
            ("The paper's values are a picture; tests are against no squeeze.",),
        ),
        Experiment(
            "figure 6",
            "Fig. 6: number of blocks n and of frequencies m",
            tuple(
                Row(cell, None if (n, m) == (1, 1) else GRID[1, 1], f"n = {n}, m = {m}", at=(n, m))
                for (n, m), cell in GRID.items()
            ),
            (
                "n = 1 uses the gate's own value: the paper's softmax over one block is always 1, "
                "which would make it the backbone alone.",
                "The paper's values are a picture; tests are against n = 1, m = 1.",
            ),
        ),
        Experiment(
            "figure 7",
            "Fig. 7: reduction r of the gate's hidden width",
            tuple(
                Row(cell, None if r == 12 else S2SENT, f"r = {r}", at=(r, 0))
                for r, cell in BY_REDUCTION.items()
            ),
            ("The paper's values are a picture; tests are against r = 12.",),
        ),
        Experiment(
            "table 3",
            "Table 3: CLS or mean pooling, without and with the selector",
            (
                Row(CLS, None, "CLS, off"),
                Row(CLS_S2SENT, CLS, "CLS, on"),
                Row(LAST1, None, "mean, off"),
                Row(S2SENT, LAST1, "mean, on"),
            ),
            ("Tests are against the same pooling without the selector.",),
            objectives=("simcse",),
        ),
        Experiment(
            "table 4",
            "Table 4: transfer tasks",
            _rows([(LAST1, "Last1 base"), (S2SENT, "Last3 2D")], LAST1),
            transfer=True,
        ),
        Experiment(
            "figure 8",
            "Fig. 8: cosines by gold score",
            (
                Row(LAST1, None, "Last1"),
                Row(LAST1_GATE, LAST1, "Last1, S2Sent"),
                Row(LAST3_AVERAGE, None, "Last3, average"),
                Row(S2SENT, LAST3_AVERAGE, "Last3, S2Sent"),
                Row(_average(6), None, "Last6, average"),
                Row(_select(6), _average(6), "Last6, S2Sent"),
            ),
            ("The paper's values are a picture; tests are against the same blocks' average.",),
        ),
        Experiment(
            "control x1",
            "X1: does the gate need its input?",
            (
                Row(LAST3_AVERAGE, S2SENT, "fixed: the mean of the last 3", ours=True),
                Row(STATIC_BLOCKS, S2SENT, "static: a weight per block", ours=True),
                Row(STATIC_FEATURES, S2SENT, "static: a weight per block and feature", ours=True),
                Row(S2SENT, None, "S2Sent: weights from the input", ours=True),
            ),
            ("Tests are against S2Sent.",),
        ),
        Experiment(
            "control x2",
            "X2: choice of blocks, or gain of features?",
            _rows(
                [
                    (LAST1_GATE, "N = 1, none: the gate's value"),
                    (_gate(1, weight_norm="global"), "N = 1, global: as in the authors' code"),
                    (S2SENT, "N = 3, softmax over blocks"),
                    (_select(3, weight_norm="none"), "N = 3, none"),
                    (_select(3, weight_norm="global"), "N = 3, global"),
                ],
                LAST1,
                ours=True,
            ),
            ("N = 1 with a softmax is the backbone alone, which tests are against.",),
        ),
        Experiment(
            "control x6",
            "X6: mask and grid of the squeeze",
            _rows(
                [
                    (S2SENT, "exact grid, valid tokens"),
                    (_select(3, dct_grid="6x6", mask="none"), "6 x 6 grid, padding included"),
                    (AUTHORS_CODE, ""),
                ],
                S2SENT,
                ours=True,
            ),
            (
                "Drift: the largest 1 - cosine between a sentence embedded alone and in a batch "
                "with longer ones.",
            ),
        ),
        Experiment(
            "control x7",
            "X7: do frequencies above 0 matter?",
            _rows(
                [
                    (S2SENT, "low4"),
                    (SQUEEZES[1], "frequency 0 only, which four times is the same"),
                    (_select(3, dct_norm="mean_ac"), "low4, scaled to mean_ac"),
                    (_select(3, dct_norm="ortho"), "low4, scaled to ortho"),
                    *(
                        (_select(3, frequency_seed=draw), f"4 random pairs, draw {draw}")
                        for draw in (1, 2)
                    ),
                ],
                S2SENT,
                ours=True,
            ),
            (
                "Shuffled: STS-B when the squeeze sees each sentence's tokens in another order, "
                "minus STS-B in their own order.",
                "Random pairs are of block frequencies below N and token frequencies below 16.",
            ),
        ),
        Experiment(
            "control x8",
            "X8: a selector that learns faster",
            _rows(_labelled(S2SENT, *SELECTOR_RATES.values()), S2SENT, ours=True),
            ("Moved: the mean distance of the weights from 1 / N, over blocks and features.",),
        ),
    )
}


def misfit(configuration: Configuration, *, blocks: int, width: int) -> str | None:
    """Why a configuration cannot be run on a backbone of this size, in one sentence; or None."""
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


def chosen(keys: Sequence[str]) -> list[Experiment]:
    """The experiments of these keys. Raises `ConfigError` for one that there is not."""
    for key in keys:
        if key not in EXPERIMENTS:
            raise ConfigError(f"There is no {key}: choose from {', '.join(EXPERIMENTS)}.")
    return [EXPERIMENTS[key] for key in dict.fromkeys(keys)]


# What the paper prints, by its backbone and objective: STS-B, SICK-R and the average of the seven.
Printed = tuple[float, float, float]
PAPER_TABLE_2: dict[tuple[str, str], dict[str, Printed]] = {
    ("BERT", "simcse"): {
        "last1": (76.88, 72.19, 76.21),
        "last1-1d": (77.82, 71.98, 77.18),
        "last3-avg": (77.25, 72.05, 76.48),
        "last3-1d": (77.79, 72.05, 77.02),
        "last3-2d": (79.54, 73.18, 78.50),
        "last6-avg": (76.73, 72.21, 76.17),
        "last6-1d": (77.87, 71.75, 77.06),
        "last6-2d": (79.23, 73.03, 78.14),
    },
    ("BERT", "prompt"): {
        "last1": (81.70, 69.57, 78.11),
        "last1-1d": (82.34, 69.78, 79.85),
        "last3-avg": (82.06, 69.89, 79.22),
        "last3-1d": (82.62, 69.62, 79.71),
        "last3-2d": (83.41, 71.15, 80.98),
        "last6-avg": (81.81, 69.92, 79.50),
        "last6-1d": (82.19, 69.82, 79.90),
        "last6-2d": (83.58, 70.97, 80.81),
    },
    ("RoBERTa", "simcse"): {
        "last1": (80.32, 68.51, 76.46),
        "last1-1d": (81.68, 69.25, 78.19),
        "last3-avg": (80.73, 68.47, 76.61),
        "last3-1d": (81.97, 69.11, 78.35),
        "last3-2d": (82.57, 70.95, 78.32),
        "last6-avg": (80.13, 68.60, 76.53),
        "last6-1d": (81.81, 69.23, 78.26),
        "last6-2d": (82.41, 70.89, 78.48),
    },
    ("RoBERTa", "prompt"): {
        "last1": (81.81, 69.74, 79.02),
        "last1-1d": (82.17, 70.34, 79.80),
        "last3-avg": (81.97, 69.89, 79.61),
        "last3-1d": (81.98, 69.82, 80.36),
        "last3-2d": (83.91, 71.21, 81.18),
        "last6-avg": (81.77, 69.98, 79.50),
        "last6-1d": (82.08, 70.34, 79.98),
        "last6-2d": (83.67, 71.57, 81.25),
    },
}

# Table 3: the average of the seven. RoBERTa's rows with mean pooling are not in the text we have.
PAPER_TABLE_3: dict[tuple[str, str], dict[str, float]] = {
    ("BERT", "simcse"): {
        "cls-last1": 76.21,
        "cls-last3-2d": 66.88,
        "last1": 76.22,
        "last3-2d": 78.50,
    },
    ("RoBERTa", "simcse"): {"cls-last1": 76.65, "cls-last3-2d": 61.17},
}

# Table 4: MR CR SUBJ MPQA SST2 TREC MRPC and their average.
PAPER_TABLE_4: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {
    ("BERT", "simcse"): {
        "last1": (81.01, 86.19, 94.45, 89.28, 85.10, 89.40, 74.51, 85.71),
        "last3-2d": (80.95, 86.79, 95.12, 89.97, 86.12, 89.97, 74.98, 86.27),
    },
    ("BERT", "prompt"): {
        "last1": (80.69, 85.89, 93.81, 89.87, 84.89, 88.48, 76.28, 85.70),
        "last3-2d": (81.45, 86.64, 93.91, 89.91, 84.77, 89.52, 76.99, 86.17),
    },
    ("RoBERTa", "simcse"): {
        "last1": (81.15, 87.14, 93.29, 86.14, 86.50, 84.43, 73.28, 84.56),
        "last3-2d": (82.01, 87.89, 93.96, 85.91, 86.94, 85.23, 74.02, 85.14),
    },
    ("RoBERTa", "prompt"): {
        "last1": (83.72, 88.59, 93.37, 90.40, 88.10, 90.01, 76.27, 87.21),
        "last3-2d": (83.44, 88.90, 93.01, 90.77, 88.64, 90.08, 76.43, 87.32),
    },
}
