"""Runs the paper's experiments (arXiv 2508.18164) and our controls, and builds their tables.

A run is one configuration trained with one objective and one seed. Its line, in the file of its
objective, is written once, however many tables it stands in.
"""

import logging
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from s2sent.training.backbones import resolve
from s2sent.training.corpus import read_corpus
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.encoders import load_checkpoint, torch_encode
from s2sent.training.evaluation.sts import score, with_average
from s2sent.training.evaluation.transfer import read_tasks, score_transfer
from s2sent.training.experiments.arms.configurations import BUDGETS, PAPER, num_blocks, recipe_of
from s2sent.training.experiments.arms.paper_experiments import (
    EXPERIMENTS,
    Experiment,
    as_printed,
    chosen,
)
from s2sent.training.experiments.arms.paper_tables import (
    difference,
    read_result_lines,
    write_tables,
)
from s2sent.training.experiments.engine import Run, Series, Study, model_config, size_of
from s2sent.training.files.record import read_record
from s2sent.training.recipe.recipe import CorpusPart, Recipe, recipe_from

log = logging.getLogger(__name__)


def runs_of(series: Series) -> list[Run]:
    """The runs of a series' experiments, each once, a whole seed before the next.

    Raises `ConfigError` where none is left, and for a line that is of another recipe or corpus.
    """
    cells, left_out = cells_of(experiments_of(series), series)
    for name, reason in left_out.items():
        log.info("left out: %s, as %s", name, reason)
    if not cells:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ConfigError(f"Nothing is left to run on {series.backbone} ({reasons}): ask for more.")
    family = str(model_config(resolve(series.backbone)).model_type)
    budget = BUDGETS[series.budget]
    corpus = [CorpusPart(source=series.corpus, limit=budget.limit)]  # of every run
    sha256 = read_corpus(series.data / "corpus", corpus, kind="texts").sha256
    runs = []
    for seed in series.seeds or budget.seeds:
        for (objective, name), transfer in cells.items():
            recipe = recipe_of(name, series, seed, objective=objective, family=family)
            run = _run(series, objective, name, recipe, transfer=transfer)
            _refuse_others(run, recipe, sha256)
            runs.append(run)
    return runs


def experiments_of(series: Series) -> list[Experiment]:
    """The experiments that a series names; of the paper's budget those in print."""
    if series.budget == PAPER:
        return as_printed(series.keys)
    return chosen(series.keys or [*EXPERIMENTS])


def cells_of(
    experiments: Sequence[Experiment], series: Series
) -> tuple[dict[tuple[str, str], bool], dict[str, str]]:
    """Each objective and configuration, and whether it needs transfer tasks.

    Beside them is what is left out, with reasons.
    """
    blocks, _ = size_of(resolve(series.backbone))
    found: dict[tuple[str, str], bool] = {}
    left_out: dict[str, str] = {}
    for experiment, objective in product(experiments, series.objectives):
        if objective not in experiment.objectives:
            left_out[f"{experiment.key} with {objective}"] = "the paper has no such rows"
            continue
        for name in experiment.configurations:
            if (needed := num_blocks(name)) > blocks:
                left_out[name] = f"it weighs {needed} blocks, and the backbone has {blocks}"
            else:
                cell = objective, name
                found[cell] = experiment.transfer or found.get(cell, False)
    return found, left_out


def _run(series: Series, objective: str, name: str, recipe: Recipe, *, transfer: bool) -> Run:
    checkpoint = series.folder / objective / f"{name}.seed{recipe.seed}.checkpoint"
    return Run(
        name=f"{objective} {name} seed {recipe.seed}",
        file=series.folder / f"{objective}.jsonl",
        key={"configuration": name, "objective": objective, "seed": recipe.seed},
        folder=checkpoint,
        recipes={checkpoint: recipe},
        score=partial(_score, checkpoint, series.data, transfer),
        needed=("transfer",) if transfer else (),
    )


def _refuse_others(run: Run, recipe: Recipe, sha256: str) -> None:
    """Raise `ConfigError` where the line of a run is of another recipe or of another corpus."""
    ours = {**recipe.as_table(), "corpus_sha256": sha256}
    for line in read_result_lines(run.file):
        if not run.key.items() <= line.items():
            continue
        theirs = recipe_from(line["recipe"], str(run.file)).as_table()
        if differing := difference({**theirs, "corpus_sha256": line["corpus_sha256"]}, ours):
            raise ConfigError(
                f"{run.file} holds {run.name} with other settings than it has now ({differing}):"
                " name another --output, or delete the line."
            )


def _score(checkpoint: Path, data: Path, transfer: bool) -> dict[str, Any]:
    record = read_record(checkpoint)
    encode = torch_encode(load_checkpoint(checkpoint))
    found = {
        "recipe": record["recipe"],
        "corpus_sha256": record["corpus"]["sha256"],
        "step": record["dev"]["step"],
        "scores": with_average(score(encode, data / "sts")),
    }
    if transfer:
        found["transfer"] = with_average(score_transfer(encode, data / "transfer"))
    return found


def write_paper_tables(series: Series) -> Path:
    """Write the tables of a series' experiments beside their results."""
    experiments = experiments_of(series)
    return write_tables(experiments, series.folder, series.objectives, series.command)


def read_transfer(series: Series) -> None:
    """Read the transfer tasks that runs need, so that none ends at a file that cannot be used."""
    if any(experiment.transfer for experiment in experiments_of(series)):
        read_tasks(series.data / "transfer")


STUDY = Study(runs_of, write_paper_tables, first=read_transfer)
