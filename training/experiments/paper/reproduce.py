"""Runs chosen experiments of the paper, then builds the tables and plots of their results."""

from collections.abc import Sequence
from pathlib import Path

from s2sent.training.experiments.paper.cells import Series
from s2sent.training.experiments.paper.latency import measure_latency
from s2sent.training.experiments.paper.plan.experiments import EXPERIMENTS, chosen
from s2sent.training.experiments.paper.tables import write_tables


def reproduce_paper(
    keys: Sequence[str], series: Series, *, latency: bool = False, only_tables: bool = False
) -> Path:
    """Run the experiments with these keys, such as "table 2", and return the path of their tables.

    Without keys and ``latency`` it is all of them. ``only_tables`` runs nothing. Raises a
    `TrainingError` for an unknown key, for what cannot be run, and for an interrupted run.
    """
    everything = not keys and not latency
    experiments = chosen(list(EXPERIMENTS) if everything else keys)
    if not only_tables and experiments:
        from s2sent.training.experiments.paper.runs import run  # imports torch, which takes seconds

        run(experiments, series)
    if not only_tables and (latency or everything):
        measure_latency(series, required=latency)
    return write_tables(
        experiments, series.folder, series.objectives, _command(keys, series, latency)
    )


def _command(keys: Sequence[str], series: Series, latency: bool) -> str:
    """The command line that builds the tables again."""
    options = [f"--{key}" for key in keys] + ["--latency"] * latency
    options += [f"--objective {name}" for name in series.objectives]
    return f"s2sent-train reproduce {' '.join(options)} --backbone {series.backbone} --only-tables"
