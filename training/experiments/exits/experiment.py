"""Runs control X4: trains and scores what has no line in the file of results yet."""

import logging
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.training.backbones import resolve
from s2sent.training.encoder import new_encoder
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.depths.embeddings import encode_exits
from s2sent.training.evaluation.development import WITHOUT_OVERLAP, read_development_pairs
from s2sent.training.evaluation.encoders import load_checkpoint
from s2sent.training.evaluation.geometry import block_weights
from s2sent.training.evaluation.retrieval import (
    PACKAGES,
    RECALL,
    read_retrieval,
    retrieval_scores,
)
from s2sent.training.evaluation.sts import TASKS, distinct, read_sentence_pairs, spearman
from s2sent.training.experiments.checkpoints import (
    Train,
    ensure_checkpoint,
    leave_scored,
    run_missing,
)
from s2sent.training.experiments.exits.plan import ARMS, DIMENSIONS, GATED, ExitRun, head_rank
from s2sent.training.experiments.exits.tables import TIMES_FILE, write_exit_tables
from s2sent.training.experiments.paper.cells import Series, backbone_name, size_of
from s2sent.training.files.record import provenance, write_json
from s2sent.training.train import train as train_recipe

log = logging.getLogger(__name__)

RESULTS_FILE = "x4.jsonl"  # in the folder of a backbone's results
DEFAULT_STEPS = 300
TIMED_ARM, TIMED_ROUNDS = "s2sent", 200
TIMED_TEXT = "A man is playing the guitar in front of a small crowd."


def reproduce_exits(
    series: Series,
    depths: Sequence[int] = (),
    *,
    arms: Sequence[str] = (),
    only_tables: bool = False,
    train: Train = train_recipe,
) -> Path:
    """Run what is missing of a series, and return the path of its tables.

    ``depths`` are the exits that are trained, of all from 2 where none is named, ``arms`` the heads
    that are run, likewise. An interrupted run goes on from its state; one that another process has
    is left to it. Raises a `TrainingError` for
    what cannot be run, and `Interrupted` when a signal ended a run.
    """
    if unknown := [arm for arm in arms if arm not in ARMS]:
        raise ConfigError(f"{unknown[0]} is no arm here: use one of {', '.join(ARMS)}.")
    file = series.folder / RESULTS_FILE
    if not only_tables:
        for run in (run for run in runs_of(series, depths) if run.arm in (arms or ARMS)):
            run_missing(file, run.key, run.checkpoint, partial(_line, run, series, train))
    return write_exit_tables(file)


def runs_of(series: Series, depths: Sequence[int] = ()) -> list[ExitRun]:
    """The runs of a series, every arm of a seed before the next seed."""
    blocks, width = size_of(resolve(series.backbone))
    exits = tuple(depths) or tuple(range(2, blocks))
    if wrong := [depth for depth in exits if not 2 <= depth < blocks]:
        raise ConfigError(f"depth {wrong[0]} is no exit: choose from 2 to {blocks - 1}.")
    return [
        ExitRun(
            backbone=series.backbone,
            depths=exits,
            arm=arm,
            seed=seed,
            steps=series.steps or DEFAULT_STEPS,
            corpus=series.corpus,
            batch_size=64 if series.budget != "smoke" else 8,
            folder=series.folder / "x4",
            head_rank=head_rank(width),
        )
        for seed in series.seeds or (1, 2, 3)
        for arm in ARMS
    ]


def _line(run: ExitRun, series: Series, train: Train) -> dict[str, Any]:
    """The result of a run, which is trained unless its checkpoint is there."""
    log.info("x4: %s, seed %d, %d steps", run.arm, run.seed, run.steps)
    cache = series.folder / "x4" / "cache"
    ensure_checkpoint(run.checkpoint, run.recipe(), series.data, train, cache=cache)
    encoder = load_checkpoint(run.checkpoint)
    grids = score_depth_grid(encoder, run.depths, series.data)
    if (packages := series.data / PACKAGES).is_file():
        grids["retrieval"] = score_recall(encoder, run.depths, packages)
    if run.arm in GATED:
        grids |= weigh_exits(encoder, run, series.data)
    times = series.folder / TIMES_FILE
    if run.arm == TIMED_ARM and not times.exists():
        found = _milliseconds(run, full=max(map(int, grids["tests"])))
        write_json(times, found)
    leave_scored(run.checkpoint, keep=series.keep)
    return {**run.key, "name": backbone_name(run.backbone), **grids, **provenance()}


def _milliseconds(run: ExitRun, full: int) -> dict[int, float]:
    """The median time of a text alone at each depth, by the artifact of a run's checkpoint."""
    from s2sent.model.export.checkpoint import (
        export_checkpoint,  # training alone runs without optimum
    )
    from s2sent.model.export.options import ExportOptions

    chosen = {**{depth: depth for depth in run.depths}, full: None}
    with TemporaryDirectory() as folder:
        options = ExportOptions(depths=run.depths)
        encoder = OnnxEncoder(export_checkpoint(run.checkpoint, Path(folder, "artifact"), options))
        times: dict[int, list[float]] = {}
        for _ in range(TIMED_ROUNDS):
            for depth, asked in chosen.items():
                started = time.perf_counter()
                encoder.encode([TIMED_TEXT], depth=asked)
                times.setdefault(depth, []).append(1e3 * (time.perf_counter() - started))
    return {depth: round(statistics.median(of), 3) for depth, of in times.items()}


def score_recall(
    encoder: SentenceTransformer, depths: Sequence[int], file: Path
) -> dict[str, float]:
    """R@1 x 100 of a file's queries among its documents, by depth at full width."""
    queries, documents = (encode_exits(encoder, side, depths) for side in read_retrieval(file))
    return {
        str(depth): retrieval_scores(queries[depth], documents[depth])[RECALL] for depth in queries
    }


def weigh_exits(encoder: SentenceTransformer, run: ExitRun, data: Path) -> dict[str, Any]:
    """The fusion weights at each depth, on dev: see `training.evaluation.geometry.BlockWeights`.

    ``block_weights`` are the mean of each block over texts and features, the oldest first,
    ``spread`` their standard deviation over texts, and ``moved`` is the largest change of a
    weight's mean over texts since the first step.
    """
    dev = read_development_pairs(data / "sts").without_overlap
    texts = distinct(dev.first, dev.second)
    torch.manual_seed(run.seed)  # as in training
    start = new_encoder(run.recipe())
    found: dict[str, Any] = {"block_weights": {}, "spread": {}, "moved": {}}
    for depth in (*run.depths, None):
        weights, before = (block_weights(each, texts, depth) for each in (encoder, start))
        if weights is None or before is None:  # an arm without a selector
            continue
        key = str(weights.blocks[-1])  # the depth, since the last blocks are fused
        found["block_weights"][key] = weights.mean.mean(1).tolist()
        found["spread"][key] = float(weights.spread.mean())
        found["moved"][key] = float(np.abs(weights.mean - before.mean).max())
    return found


def score_depth_grid(
    encoder: SentenceTransformer, depths: Sequence[int], data: Path
) -> dict[str, Any]:
    """Spearman x 100 by depth and dimension: the mean of the STS tasks of ``data``, and dev.

    Raises `DataError` for a task whose file is missing.
    """
    width = int(encoder.get_embedding_dimension() or 0)
    dev = read_development_pairs(data / "sts").without_overlap
    sets = {task: read_sentence_pairs(data / "sts" / file) for task, file in TASKS.items()}
    found: dict[str, dict[str, dict[str, float]]] = {"tests": {}, "dev": {}}
    texts = distinct(*(side for of in (dev, *sets.values()) for side in (of.first, of.second)))
    place = {text: number for number, text in enumerate(texts)}
    rows = encode_exits(encoder, texts, depths)
    for task, pairs in {WITHOUT_OVERLAP: dev, **sets}.items():
        first, second = ([place[text] for text in side] for side in (pairs.first, pairs.second))
        for depth, of_depth in rows.items():
            for dimension in (*(each for each in DIMENSIONS if each < width), width):
                value = spearman(
                    of_depth[first, :dimension], of_depth[second, :dimension], pairs.gold
                )
                part, share = ("dev", 1.0) if task == WITHOUT_OVERLAP else ("tests", 1 / len(sets))
                row = found[part].setdefault(str(depth), {})
                row[str(dimension)] = row.get(str(dimension), 0.0) + value * share
    return found
