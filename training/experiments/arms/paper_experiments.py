"""The paper's tables, and a control of ours beside them, as lists of configurations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation import transfer
from s2sent.training.evaluation.results.published import TABLE_2, TABLE_3, TABLE_4, Group
from s2sent.training.evaluation.sts import AVERAGE
from s2sent.training.experiments.arms.configurations import BY_PRESET, OBJECTIVES, PRESETS


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

    def has_printed(self, name: str) -> bool:
        """Whether the paper has a row of this configuration."""
        return any(name in rows for rows in self.printed.values())

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
        printed = [row for row in experiment.rows if experiment.has_printed(row.name)]
        rows = [each for row in printed for each in _by_preset(row)]
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
