"""Runs the decoder experiment: what has no line in its two files of results yet.

First heads on the frozen backbone, whose tests are opened at the end, then low-rank updates, each
run trained and scored before the next.
"""

import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from s2sent.training.backbones import resolve
from s2sent.training.encoder import new_encoder
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import read_development_pairs
from s2sent.training.evaluation.encoders import load_checkpoint, torch_encode
from s2sent.training.evaluation.geometry import block_weights
from s2sent.training.evaluation.sts import Remembered, distinct, spearman
from s2sent.training.experiments.checkpoints import (
    Train,
    ensure_checkpoint,
    leave_scored,
    run_missing,
)
from s2sent.training.experiments.decoders.plan import (
    BUDGETS,
    LORA_ARMS,
    LoraRun,
    corpus_of,
    frozen_plan,
    lora_runs,
    reading_of,
)
from s2sent.training.experiments.decoders.tables import FROZEN_FILE, LORA_FILE, write_decoder_tables
from s2sent.training.experiments.locks import claim, lock_of
from s2sent.training.experiments.paper.cells import Series, backbone_name, size_of
from s2sent.training.files.record import provenance, read_record
from s2sent.training.frozen.experiment import run_plan
from s2sent.training.frozen.opening import open_tests, read_tests, scores_on
from s2sent.training.frozen.selection import TESTS
from s2sent.training.frozen.setting import read_setting
from s2sent.training.frozen.train import CHOSEN_ON, WEIGHED_TEXTS
from s2sent.training.train import train as train_recipe

log = logging.getLogger(__name__)

SCRATCH = "sfp"  # the folder of states, heads and checkpoints, beside the results


def reproduce_decoders(
    series: Series,
    *,
    test_pairs: int = 0,
    arms: Sequence[str] = (),
    only_tables: bool = False,
    train: Train = train_recipe,
) -> Path:
    """Run what is missing of a series, and return the path of its tables.

    ``test_pairs`` of each test are scored, at equal steps; 0 takes all. The series' ``steps`` are
    those of a run with low-rank updates, 0 for none. With ``arms`` nothing is run but low-rank
    updates with these heads. A run that another process has is left to it. Raises a
    `TrainingError` for what cannot be run, and `Interrupted` when a signal ended a run.
    """
    if unknown := [arm for arm in arms if arm not in LORA_ARMS]:
        raise ConfigError(f"{unknown[0]} is no arm here: use one of {', '.join(LORA_ARMS)}.")
    if not only_tables:
        if not arms:
            with claim(lock_of(series.folder / FROZEN_FILE), "sfp on the frozen backbone") as free:
                if free:
                    run_frozen(series, test_pairs)
        for run in (run for run in runs_of(series, test_pairs) if run.arm in (arms or LORA_ARMS)):
            run_missing(
                series.folder / LORA_FILE,
                run.key,
                run.checkpoint,
                partial(_line, run, series, train),
            )
    return write_decoder_tables(series.folder)


def run_frozen(series: Series, test_pairs: int) -> None:
    """Train the heads on the frozen backbone's states, then score the tests, once."""
    budget, causal = BUDGETS[series.budget], is_decoder(series.backbone)
    blocks, _ = size_of(resolve(series.backbone))
    plan = frozen_plan(budget, series.seeds, causal=causal, blocks=blocks)
    file, cache = series.folder / FROZEN_FILE, series.folder / SCRATCH / "states"
    setting = read_setting(
        series.backbone,
        series.data,
        None,
        cache,
        corpus=corpus_of(budget),
        reading=reading_of(causal=causal, blocks=blocks),
    )
    run_plan(setting, plan, file, cache)
    open_tests(setting, series.data, cache, file, pairs_per_task=test_pairs)


def runs_of(series: Series, test_pairs: int) -> list[LoraRun]:
    """The runs with low-rank updates; an encoder has none."""
    if not is_decoder(series.backbone):
        return []
    blocks, _ = size_of(resolve(series.backbone))
    return lora_runs(
        series.backbone,
        BUDGETS[series.budget],
        blocks=blocks,
        seeds=series.seeds,
        steps=series.steps,
        test_pairs=test_pairs,
        folder=series.folder / SCRATCH,
    )


def is_decoder(backbone: str) -> bool:
    """Whether a backbone reads from left to right only."""
    from transformers import AutoConfig  # takes seconds to import

    from s2sent.model.network.transformer import is_causal

    return is_causal(AutoConfig.from_pretrained(resolve(backbone)))


def _line(run: LoraRun, series: Series, train: Train) -> dict[str, Any]:
    """The result of a run, which is trained unless its checkpoint is there."""
    log.info("sfp: %s, seed %d, %d steps", run.arm, run.seed, run.steps)
    seconds = ensure_checkpoint(run.checkpoint, run.recipe(), series.data, train)
    started = time.monotonic()
    found = score_lora(run, series.data)
    record = read_record(run.checkpoint)
    leave_scored(run.checkpoint, keep=series.keep)
    return {
        **run.key,
        "name": backbone_name(run.backbone),
        "dev": record.get("dev"),
        **found,
        "seconds_training": seconds,  # null where training had ended before an interruption
        "seconds_scoring": round(time.monotonic() - started, 1),
        **provenance(),
    }


def score_lora(run: LoraRun, data: Path) -> dict[str, Any]:
    """Development score, tests with geometry, and fusion weights, in the run's precision.

    ``block_weights`` are the mean of each block over texts and features, the oldest first,
    ``spread`` their standard deviation over texts, and ``moved`` is the largest change of a
    weight's mean over texts since the first step; None without a selector.
    """
    import torch

    precision = torch.bfloat16 if run.bf16 else torch.float32
    encoder = load_checkpoint(run.checkpoint).to(precision)
    encode = Remembered(torch_encode(encoder))
    dev = read_development_pairs(data / "sts").without_overlap
    tests = read_tests(data, run.test_pairs)
    encode(distinct(*(side for of in (dev, *tests.values()) for side in (of.first, of.second))))
    weighed = distinct(dev.first, dev.second)[:WEIGHED_TEXTS]
    weights, start = block_weights(encoder, weighed), None
    if weights and run.has_gate:
        torch.manual_seed(run.seed)  # as in training
        start = block_weights(new_encoder(run.recipe()).to(precision), weighed)
    return {
        CHOSEN_ON: spearman(encode(dev.first), encode(dev.second), dev.gold),
        TESTS: scores_on(encode, tests),
        "block_weights": None if weights is None else weights.mean.mean(1).tolist(),
        "spread": None if weights is None else float(weights.spread.mean()),
        "moved": float(np.abs(weights.mean - start.mean).max()) if weights and start else None,
    }
