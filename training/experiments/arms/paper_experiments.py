"""The paper's tables and figures, and our controls beside them, as lists of configurations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from s2sent.training.errors import ConfigError
from s2sent.training.experiments.arms.configurations import (
    AT_LAST,
    AUTHORS_CODE,
    BY_REDUCTION,
    CLS,
    CLS_S2SENT,
    GRID,
    LAST1,
    LAST1_GATE,
    LAST3_AVERAGE,
    NEAR_LAST,
    OBJECTIVES,
    S2SENT,
    SELECTOR_RATES,
    SQUEEZES,
    STATIC_BLOCKS,
    STATIC_FEATURES,
    Configuration,
    average,
    gate,
    select,
)


@dataclass(frozen=True)
class TableRow:
    """A line of a table: a configuration, and the name of the one it is tested against."""

    configuration: Configuration
    base: Configuration | None
    label: str
    ours: bool = False  # not in the paper
    at: tuple[float, float] | None = None  # its coordinates in a figure


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
    pairs: Iterable[tuple[Configuration, str]], base: Configuration | None, *, ours: bool = False
) -> tuple[TableRow, ...]:
    return tuple(
        TableRow(
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
    (gate(3), "Last3 avg+1D"),
    (S2SENT, "Last3 2D"),
    (average(6), "Last6 avg"),
    (gate(6), "Last6 avg+1D"),
    (select(6), "Last6 2D"),
]

EXPERIMENTS = {
    experiment.key: experiment
    for experiment in (
        Experiment(
            "table 2",
            "Table 2: which blocks, and how they are put together",
            (
                *_rows(_PAPER_ROWS, LAST1),
                TableRow(NEAR_LAST, LAST1, "Last3 2D, started near the last block", ours=True),
                TableRow(
                    AT_LAST, LAST1, "Last3 2D, any weight, started at the last block", ours=True
                ),
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
                TableRow(
                    cell, None if (n, m) == (1, 1) else GRID[1, 1], f"n = {n}, m = {m}", at=(n, m)
                )
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
                TableRow(cell, None if r == 12 else S2SENT, f"r = {r}", at=(r, 0))
                for r, cell in BY_REDUCTION.items()
            ),
            ("The paper's values are a picture; tests are against r = 12.",),
        ),
        Experiment(
            "table 3",
            "Table 3: CLS or mean pooling, without and with the selector",
            (
                TableRow(CLS, None, "CLS, off"),
                TableRow(CLS_S2SENT, CLS, "CLS, on"),
                TableRow(LAST1, None, "mean, off"),
                TableRow(S2SENT, LAST1, "mean, on"),
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
                TableRow(LAST1, None, "Last1"),
                TableRow(LAST1_GATE, LAST1, "Last1, S2Sent"),
                TableRow(LAST3_AVERAGE, None, "Last3, average"),
                TableRow(S2SENT, LAST3_AVERAGE, "Last3, S2Sent"),
                TableRow(average(6), None, "Last6, average"),
                TableRow(select(6), average(6), "Last6, S2Sent"),
            ),
            ("The paper's values are a picture; tests are against the same blocks' average.",),
        ),
        Experiment(
            "control x1",
            "X1: does the gate need its input?",
            (
                TableRow(LAST3_AVERAGE, S2SENT, "fixed: the mean of the last 3", ours=True),
                TableRow(STATIC_BLOCKS, S2SENT, "static: a weight per block", ours=True),
                TableRow(
                    STATIC_FEATURES, S2SENT, "static: a weight per block and feature", ours=True
                ),
                TableRow(S2SENT, None, "S2Sent: weights from the input", ours=True),
            ),
            ("Tests are against S2Sent.",),
        ),
        Experiment(
            "control x2",
            "X2: choice of blocks, or gain of features?",
            _rows(
                [
                    (LAST1_GATE, "N = 1, none: the gate's value"),
                    (gate(1, weight_norm="global"), "N = 1, global: as in the authors' code"),
                    (S2SENT, "N = 3, softmax over blocks"),
                    (select(3, weight_norm="none"), "N = 3, none"),
                    (select(3, weight_norm="global"), "N = 3, global"),
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
                    (select(3, dct_grid="6x6", mask="none"), "6 x 6 grid, padding included"),
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
                    (select(3, dct_norm="mean_ac"), "low4, scaled to mean_ac"),
                    (select(3, dct_norm="ortho"), "low4, scaled to ortho"),
                    *(
                        (select(3, frequency_seed=draw), f"4 random pairs, draw {draw}")
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
            ("Distance: the mean one of the weights from 1 / N, over blocks and features.",),
        ),
    )
}


OTHERS = ("table jtcse", "table sfp", "control x4")  # with runs of their own


def chosen(keys: Sequence[str]) -> list[Experiment]:
    """The experiments with these keys; raises `ConfigError` for an unknown key."""
    for key in keys:
        if key not in EXPERIMENTS:
            known = ", ".join([*EXPERIMENTS, *OTHERS])
            raise ConfigError(f"There is no {key}: choose from {known}.")
    return [EXPERIMENTS[key] for key in dict.fromkeys(keys)]
