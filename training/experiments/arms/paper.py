"""Runs the paper's experiments (arXiv 2508.18164) and our controls, and builds their tables.

A run is one configuration trained with one objective and one seed. Its line, in the file of its
objective, is written once, however many tables it stands in.
"""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from s2sent.training.backbones import resolve
from s2sent.training.corpus import read_corpus
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation import transfer as transfer_tasks
from s2sent.training.evaluation.encoders import load_checkpoint, torch_encode
from s2sent.training.evaluation.geometry import GEOMETRY_FILE, describe_groups
from s2sent.training.evaluation.measure import measure
from s2sent.training.evaluation.sts import distinct, read_sentence_pairs
from s2sent.training.experiments.arms.configurations import BUDGETS, PAPER
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
from s2sent.training.experiments.score import (
    fusion_weights,
    initial_encoder,
    parameters,
    versions,
)
from s2sent.training.files.record import read_record
from s2sent.training.recipe.recipe import Recipe, recipe_from

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
    sha256: dict[str, str] = {}  # of each corpus, which is read once
    runs = []
    for (objective, name, _), (recipe, transfer) in cells.items():
        kind = recipe.objective.example_kind
        corpus = repr((recipe.corpus, kind))
        if corpus not in sha256:
            sha256[corpus] = read_corpus(series.data / "corpus", recipe.corpus, kind=kind).sha256
        run = _run(series, objective, name, recipe, transfer=transfer)
        _refuse_others(run, recipe, sha256[corpus])
        runs.append(run)
    return runs


def experiments_of(series: Series) -> list[Experiment]:
    """The experiments that a series names; of the paper's budget those in print."""
    if series.budget == PAPER:
        return as_printed(series.keys)
    return chosen(series.keys or [*EXPERIMENTS])


def cells_of(
    experiments: Sequence[Experiment], series: Series
) -> tuple[dict[tuple[str, str, int], tuple[Recipe, bool]], dict[str, str]]:
    """The recipe of each objective, configuration and seed, and whether it needs transfer tasks.

    Beside them is what is left out, with reasons.
    """
    folder = resolve(series.backbone)
    (blocks, _), family = size_of(folder), str(model_config(folder).model_type)
    found: dict[tuple[str, str, int], tuple[Recipe, bool]] = {}
    left_out: dict[str, str] = {}
    for seed in series.seeds or BUDGETS[series.budget].seeds:
        for experiment in experiments:
            for objective in series.objectives:
                if objective not in experiment.objectives:
                    left_out[f"{experiment.key} with {objective}"] = "the paper has no such rows"
                    continue
                for name, configuration in experiment.configurations.items():
                    if (needed := configuration.num_blocks) > blocks:
                        left_out[name] = f"it weighs {needed} blocks, and the backbone has {blocks}"
                        continue
                    key = objective, name, seed
                    transfer = experiment.transfer or (key in found and found[key][1])
                    recipe = configuration.recipe(
                        objective=objective,
                        backbone=series.backbone,
                        budget=series.budget,
                        seed=seed,
                        steps=series.steps,
                        corpus=series.corpus,
                        family=family,
                    )
                    found[key] = recipe, transfer
    return found, left_out


def _run(series: Series, objective: str, name: str, recipe: Recipe, *, transfer: bool) -> Run:
    checkpoint = series.folder / objective / f"{name}.seed{recipe.seed}.checkpoint"
    return Run(
        name=f"{objective} {name} seed {recipe.seed}",
        file=series.folder / f"{objective}.jsonl",
        key={"configuration": name, "objective": objective, "seed": recipe.seed},
        folder=checkpoint,
        recipes={checkpoint: recipe},
        score=partial(_score, recipe, checkpoint, series.data, transfer),
        needed=("transfer",) if transfer else (),
    )


def _refuse_others(run: Run, recipe: Recipe, sha256: str) -> None:
    """Raise `ConfigError` where the line of a run is of another recipe or of another corpus."""
    for line in read_result_lines(run.file):
        if not run.key.items() <= line.items():
            continue
        where = f"{run.file}, {run.key['configuration']} seed {recipe.seed}"
        cure = "name another --output, or delete the line."
        if recipe_from(line["recipe"], where) != recipe:
            differing = difference(line["recipe"], recipe.as_table())
            raise ConfigError(
                f"{where} holds another recipe than {run.name} has now ({differing}): {cure}"
            )
        if line["corpus_sha256"] != sha256:
            raise ConfigError(
                f"{where} was trained on the corpus {line['corpus_sha256'][:12]}, and {run.name} "
                f"would be on {sha256[:12]}: {cure}"
            )


def _score(
    recipe: Recipe, checkpoint: Path, data: Path, transfer: bool, seconds: float | None
) -> dict[str, Any]:
    record = read_record(checkpoint)
    return {
        "recipe": recipe.as_table(),
        "corpus_sha256": record["corpus"]["sha256"],
        "dev": record["dev"]["score"],
        "step": record["dev"]["step"],
        "curve": record["dev"]["curve"],
        "mean_block_weights": record.get("mean_block_weights"),
        "seconds": seconds,  # null where training had ended before an interruption
        **score_checkpoint(checkpoint, recipe, data, transfer=transfer),
        "versions": versions(),
    }


def score_checkpoint(
    checkpoint: Path, recipe: Recipe, data: Path, *, transfer: bool
) -> dict[str, Any]:
    """The measurements of a checkpoint for its line.

    Beside those of `measure`: the numbers of parameters and the selector's weights on STS-B's
    sentences. Of the weights ``moved`` is the mean distance from 1 / N,
    ``max_moved`` the largest change of a block's and feature's mean weight since step 0.
    """
    encoder = load_checkpoint(checkpoint)
    encode = torch_encode(encoder)
    measured = measure(str(checkpoint), encode, data, transfer=transfer)
    pairs = read_sentence_pairs(data / "sts" / GEOMETRY_FILE)
    sentences = distinct(pairs.first, pairs.second)
    found: dict[str, Any] = {
        "scores": measured.sts,
        "geometry": measured.geometry,
        "by_gold": describe_groups(measured.groups),
        "cosines": {group.name: np.round(group.cosines, 4).tolist() for group in measured.groups},
        "parameters": parameters(encoder),
    }
    start = initial_encoder(recipe) if recipe.selector is not None else None
    if (known := fusion_weights(encoder, start, sentences)) is not None:
        weights = known.weights
        found["weights"] = {
            "moved": float(abs(weights.mean - 1 / len(weights.blocks)).mean()),
            "max_moved": known.change,
        }
    if measured.transfer is not None:
        found["transfer"] = measured.transfer
    return found


def write_paper_tables(series: Series) -> Path:
    """Write the tables of a series' experiments beside their results."""
    experiments = experiments_of(series)
    return write_tables(experiments, series.folder, series.objectives, series.command)


def read_transfer(series: Series) -> None:
    """Read the transfer tasks that runs need, so that none ends at a file that cannot be used."""
    if any(experiment.transfer for experiment in experiments_of(series)):
        transfer_tasks.read_tasks(series.data / "transfer")


STUDY = Study(runs_of, write_paper_tables, first=read_transfer)
