"""Runs a chain of recipes with each seed, and scores what the last one leaves.

Every seed is trained and scored on development data before any is scored on the tests. What has its
checkpoint or its line is not done again, so an interrupted series goes on when its command is given
again.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from s2sent.training.encoder import new_encoder
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import read_development_pairs, score_development
from s2sent.training.evaluation.encoders import load_checkpoint, torch_encode
from s2sent.training.evaluation.geometry import weight_movement
from s2sent.training.evaluation.results.openings import note_opening
from s2sent.training.evaluation.retrieval import PACKAGES
from s2sent.training.evaluation.sts import Remembered, distinct, score, with_average
from s2sent.training.experiments.chain.plan import Chain
from s2sent.training.experiments.chain.tables import DEVELOPMENT, TESTS, write_chain_tables
from s2sent.training.experiments.checkpoints import Train, ensure_checkpoint
from s2sent.training.experiments.locks import claim, lock_of
from s2sent.training.files.jsonl import append_line, read_lines
from s2sent.training.files.record import provenance, read_record
from s2sent.training.recipe.recipe import Recipe
from s2sent.training.train import train as train_recipe

log = logging.getLogger(__name__)

RESULTS_FILE = "chain.jsonl"

Runs = Mapping[Path, Recipe]  # by the folders that they leave, in their order


@dataclass(frozen=True)
class ChainSeries:
    """What one command runs: a chain, its seeds, and where its data and its results are."""

    chain: Chain
    seeds: Sequence[int]
    data: Path
    output: Path
    tests: bool = False  # score the seven STS tests too, once all else is done


def run_chain(series: ChainSeries, *, train: Train = train_recipe) -> Path:
    """Run what is missing of a series, and return the path of its tables.

    A seed that another process has is left to it. Raises a `TrainingError` for what cannot be run,
    before anything is trained, and `Interrupted` when a signal ended a run.
    """
    file = series.output / RESULTS_FILE
    if any(line["chain_sha256"] != series.chain.sha256 for line in read_lines(file)):
        raise ConfigError(f"{file} has results of other recipes: choose another --output.")
    chain = series.chain
    runs = {  # every one is built before the first is trained
        seed: {arm: chain.with_seed(seed, arm, series.output) for arm in chain.arms}
        for seed in series.seeds
    }
    for part in (DEVELOPMENT, *((TESTS,) if series.tests else ())):
        for seed, by_arm in runs.items():
            _run_seed(series, part, seed, by_arm, train)
        if any(_missing(series, part, seed) for seed in runs):
            log.info("%s is not done by other processes: give the same command again then", part)
            break
    return write_chain_tables(file)


def _missing(series: ChainSeries, part: str, seed: int) -> dict[str, dict[str, Any]]:
    """The beginnings of the lines of a seed that the file does not hold, by arm."""
    lines = read_lines(series.output / RESULTS_FILE)
    sha256 = series.chain.sha256
    heads = {
        arm: {"chain_sha256": sha256, "part": part, "seed": seed, "arm": arm}
        for arm in series.chain.arms
    }
    return {
        arm: head
        for arm, head in heads.items()
        if not any(head.items() <= line.items() for line in lines)
    }


def _run_seed(
    series: ChainSeries, part: str, seed: int, by_arm: Mapping[str, Runs], train: Train
) -> None:
    """Add the lines of a seed, whose arms share checkpoints, unless another process has it."""
    if not _missing(series, part, seed):
        return
    with claim(lock_of(series.output / f"seed{seed}"), f"seed {seed}, {part}") as free:
        for arm, head in _missing(series, part, seed).items() if free else ():
            found = _found(series, part, by_arm[arm], train)
            append_line(series.output / RESULTS_FILE, {**head, **found})


def _found(series: ChainSeries, part: str, runs: Runs, train: Train) -> dict[str, Any]:
    """The scores of a seed's last checkpoint, which is trained unless it is there."""
    for folder, recipe in runs.items():
        ensure_checkpoint(folder, recipe, series.data, train)
    folder, recipe = list(runs.items())[-1]
    encoder = load_checkpoint(folder)
    encode = Remembered(torch_encode(encoder))
    if part == TESTS:
        note_opening(str(folder))
        return {"scores": with_average(score(encode, series.data / "sts")), **provenance()}
    retrieval = series.data / PACKAGES
    pairs = read_development_pairs(series.data / "sts").without_overlap
    texts = distinct(pairs.first, pairs.second)
    torch.manual_seed(recipe.seed)  # as in training
    start = new_encoder(recipe)
    return {
        "scores": score_development(
            encode, series.data / "sts", retrieval if retrieval.is_file() else None
        ),
        "kept_steps": [read_record(each).get("dev", {}).get("step") for each in runs],
        "weight_moved": weight_movement(encoder, start, texts),
        **provenance(),
    }
