"""Runs a chain of recipes with each seed, and scores what the last one leaves.

Every seed is trained and scored on development data before any is scored on the tests. What has its
checkpoint or its line is not done again, so an interrupted series goes on when its command is given
again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.encoder import new_encoder
from training.errors import ConfigError
from training.evaluation.development import read_development_pairs, score_development
from training.evaluation.encoders import load_checkpoint, torch_encode
from training.evaluation.geometry import weight_movement
from training.evaluation.sts import Remembered, distinct, score, with_average
from training.experiments.chain.plan import Chain
from training.experiments.chain.tables import DEVELOPMENT, TESTS, write_chain_tables
from training.experiments.checkpoints import Train, ensure_checkpoint
from training.jsonl import append_line, read_lines
from training.record import provenance, read_record
from training.train import train as train_recipe

RESULTS_FILE = "chain.jsonl"
RETRIEVAL = Path("retrieval", "packages-dev.tsv")  # in the data; left out where it is not there


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

    Raises a `TrainingError` for what cannot be run, and `Interrupted` when a signal ended a run.
    """
    file = series.output / RESULTS_FILE
    sha256 = series.chain.sha256
    if any(line["chain_sha256"] != sha256 for line in read_lines(file)):
        raise ConfigError(f"{file} has results of other recipes: choose another --output.")
    for part in (DEVELOPMENT, *((TESTS,) if series.tests else ())):
        for seed in series.seeds:
            for arm in series.chain.arms:
                key = {"chain_sha256": sha256, "part": part, "seed": seed, "arm": arm}
                if not any(key.items() <= line.items() for line in read_lines(file)):
                    append_line(file, {**key, **_found(series, part, seed, arm, train)})
    return write_chain_tables(file)


def _found(series: ChainSeries, part: str, seed: int, arm: str, train: Train) -> dict[str, Any]:
    """The scores of a seed's last checkpoint, which is trained unless it is there."""
    runs = series.chain.with_seed(seed, arm, series.output)
    for folder, recipe in runs.items():
        ensure_checkpoint(folder, recipe, series.data, train)
    folder, recipe = list(runs.items())[-1]
    encoder = load_checkpoint(folder)
    encode = Remembered(torch_encode(encoder))
    if part == TESTS:
        return {"scores": with_average(score(encode, series.data / "sts")), **provenance()}
    retrieval = series.data / RETRIEVAL
    pairs = read_development_pairs(series.data / "sts").without_overlap
    texts = distinct(pairs.first, pairs.second)
    return {
        "scores": score_development(
            encode, series.data / "sts", retrieval if retrieval.is_file() else None
        ),
        "kept_steps": [read_record(each).get("dev", {}).get("step") for each in runs],
        "weight_moved": weight_movement(encoder, new_encoder(recipe), texts),
        **provenance(),
    }
