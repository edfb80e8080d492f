"""The paper's tables and figures, and our controls beside them, as lists of configurations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from s2sent.training.errors import ConfigError
from s2sent.training.experiments.arms import configurations as known
from s2sent.training.experiments.arms.configurations import (
    LAST1,
    LAST1_GATE,
    LAST3_AVERAGE,
    OBJECTIVES,
    S2SENT,
    Configuration,
    average,
    gate,
    select,
)


@dataclass(frozen=True)
class TableRow:
    """A line of a table: a configuration, and the one that it is tested against."""

    configuration: Configuration
    base: Configuration | None
    label: str
    ours: bool = False  # not in the paper


@dataclass(frozen=True)
class Experiment:
    """A table, a figure or a control, with notes on how it is run here."""

    key: str
    title: str
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    objectives: tuple[str, ...] = tuple(OBJECTIVES)
    transfer: bool = False  # needs the transfer tasks

    @property
    def configurations(self) -> dict[str, Configuration]:
        """The configurations to run, by name, the rows' bases included."""
        bases = [row.base for row in self.rows if row.base]
        needed = [*bases, *(row.configuration for row in self.rows)]
        return {configuration.name: configuration for configuration in needed}


def _rows(
    base: Configuration | None, rows: dict[str, Configuration], *, ours: bool = False
) -> tuple[TableRow, ...]:
    """Rows by label, tested against one of them."""
    return tuple(
        TableRow(cell, None if cell == base else base, label, ours) for label, cell in rows.items()
    )


_PICTURE = "The paper's values are a picture; tests are against {}."
_EVERY = (
    Experiment(
        "table 2",
        "Table 2: which blocks, and how they are put together",
        (
            *_rows(
                LAST1,
                {
                    "Last1 base": LAST1,
                    "Last1 1D": LAST1_GATE,
                    "Last3 avg": LAST3_AVERAGE,
                    "Last3 avg+1D": gate(3),
                    "Last3 2D": S2SENT,
                    "Last6 avg": average(6),
                    "Last6 avg+1D": gate(6),
                    "Last6 2D": select(6),
                },
            ),
            *_rows(
                LAST1,
                {
                    "Last3 2D, started near the last block": known.NEAR_LAST,
                    "Last3 2D, any weight, started at the last block": known.AT_LAST,
                },
                ours=True,
            ),
        ),
        ("Last1 1D uses the gate's own value: a softmax over one block is always 1.",),
    ),
    Experiment(
        "figure 5",
        "Fig. 5: frequency selection",
        _rows(
            known.SQUEEZES[0],
            dict(zip(("no squeeze", "GAP", "low4", "low8"), known.SQUEEZES.values(), strict=True)),
        ),
        (_PICTURE.format("no squeeze"),),
    ),
    Experiment(
        "figure 6",
        "Fig. 6: number of blocks n and of frequencies m",
        _rows(known.GRID[1, 1], {f"n = {n}, m = {m}": cell for (n, m), cell in known.GRID.items()}),
        (
            "n = 1 uses the gate's own value: the paper's softmax over one block is always 1, "
            "which would make it the backbone alone.",
            _PICTURE.format("n = 1, m = 1"),
        ),
    ),
    Experiment(
        "figure 7",
        "Fig. 7: reduction r of the gate's hidden width",
        _rows(S2SENT, {f"r = {r}": cell for r, cell in known.BY_REDUCTION.items()}),
        (_PICTURE.format("r = 12"),),
    ),
    Experiment(
        "table 3",
        "Table 3: CLS or mean pooling, without and with the selector",
        (
            *_rows(known.CLS, {"CLS, off": known.CLS, "CLS, on": known.CLS_S2SENT}),
            *_rows(LAST1, {"mean, off": LAST1, "mean, on": S2SENT}),
            *_rows(
                known.CLS_WITHOUT_HEAD,
                {
                    "CLS trained without SimCSE's head, off": known.CLS_WITHOUT_HEAD,
                    "CLS trained without SimCSE's head, on": known.CLS_S2SENT_WITHOUT_HEAD,
                },
                ours=True,
            ),
        ),
        (
            "Tests are against the same pooling without the selector.",
            "CLS is trained with SimCSE's head, a Linear + tanh that evaluation leaves out "
            "(mlp_only_train).",
        ),
        objectives=("simcse",),
    ),
    Experiment(
        "table 4",
        "Table 4: transfer tasks",
        _rows(LAST1, {"Last1 base": LAST1, "Last3 2D": S2SENT}),
        transfer=True,
    ),
    Experiment(
        "figure 8",
        "Fig. 8: cosines by gold score",
        (
            *_rows(LAST1, {"Last1": LAST1, "Last1, S2Sent": LAST1_GATE}),
            *_rows(LAST3_AVERAGE, {"Last3, average": LAST3_AVERAGE, "Last3, S2Sent": S2SENT}),
            *_rows(average(6), {"Last6, average": average(6), "Last6, S2Sent": select(6)}),
        ),
        (_PICTURE.format("the same blocks' average"),),
    ),
    Experiment(
        "control x1",
        "X1: does the gate need its input?",
        _rows(
            S2SENT,
            {
                "fixed: the mean of the last 3": LAST3_AVERAGE,
                "static: a weight per block": known.STATIC_BLOCKS,
                "static: a weight per block and feature": known.STATIC_FEATURES,
                "S2Sent: weights from the input": S2SENT,
            },
            ours=True,
        ),
        ("Tests are against S2Sent.",),
    ),
    Experiment(
        "control x2",
        "X2: choice of blocks, or gain of features?",
        _rows(
            LAST1,
            {
                "N = 1, none: the gate's value": LAST1_GATE,
                "N = 1, global: as in the authors' code": gate(1, weight_norm="global"),
                "N = 3, softmax over blocks": S2SENT,
                "N = 3, none": select(3, weight_norm="none"),
                "N = 3, global": select(3, weight_norm="global"),
            },
            ours=True,
        ),
        ("N = 1 with a softmax is the backbone alone, which tests are against.",),
    ),
    Experiment(
        "control x6",
        "X6: mask and grid of the squeeze",
        _rows(
            S2SENT,
            {
                "exact grid, valid tokens": S2SENT,
                "6 x 6 grid, padding included": select(3, dct_grid="6x6", mask="none"),
                known.AUTHORS_CODE.label: known.AUTHORS_CODE,
            },
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
            S2SENT,
            {
                "low4": S2SENT,
                "frequency 0 only, which four times is the same": known.SQUEEZES[1],
                "low4, scaled to mean_ac": select(3, dct_norm="mean_ac"),
                "low4, scaled to ortho": select(3, dct_norm="ortho"),
                "4 random pairs, draw 1": select(3, frequency_seed=1),
                "4 random pairs, draw 2": select(3, frequency_seed=2),
            },
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
        _rows(
            S2SENT,
            {cell.label: cell for cell in (S2SENT, *known.SELECTOR_RATES.values())},
            ours=True,
        ),
        ("Distance: the mean one of the weights from 1 / N, over blocks and features.",),
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
        rows = [row for row in experiment.rows if not row.ours]
        if not rows:
            raise ConfigError(f"--paper runs what the paper has: leave {experiment.key} out.")
        if experiment.key in PAPER_TABLES:
            rows = [each for row in rows for each in _by_preset(row)]
        found.append(replace(experiment, rows=tuple(rows)))
    return found


def _by_preset(row: TableRow) -> list[TableRow]:
    """A row of Last3 2D for each preset of the selector; another one as it is."""
    if row.configuration not in (S2SENT, known.CLS_S2SENT):
        return [row]
    others = [
        replace(
            row, configuration=row.configuration.with_preset(preset), label=f"{row.label}, {label}"
        )
        for preset, label in known.PRESETS.items()
    ]
    return [replace(row, label=f"{row.label}, preset default"), *others]


def chosen(keys: Sequence[str]) -> list[Experiment]:
    """The experiments with these keys; raises `ConfigError` for an unknown key."""
    for key in keys:
        if key not in EXPERIMENTS:
            every = ", ".join([*EXPERIMENTS, *OTHERS])
            raise ConfigError(f"There is no {key}: choose from {every}.")
    return [EXPERIMENTS[key] for key in dict.fromkeys(keys)]
