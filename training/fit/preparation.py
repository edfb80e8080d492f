"""Prepares a run: reads corpus and dev, and builds the encoder, the loss and the trainer."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer

from s2sent.training.bfloat16 import NO_BFLOAT16, has_bfloat16
from s2sent.training.corpus import Corpus, read_corpus
from s2sent.training.errors import ConfigError, DataError
from s2sent.training.evaluation.sts import DEV_FILE, SentencePairs, read_sentence_pairs, thinned
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.loop.processes import num_processes
from s2sent.training.loop.projections import fit_new_projections
from s2sent.training.loop.trainer import Reporting, Trainer, new_trainer
from s2sent.training.objectives.from_recipe import make_loss
from s2sent.training.recipe.recipe import Recipe
from s2sent.training.sources.by_name import MADE

log = logging.getLogger(__name__)

SAVE_MINUTES = 10.0
PRECISION_VARIABLE = "ACCELERATE_MIXED_PRECISION"  # transformers sets it for bf16


@dataclass(frozen=True)
class Prepared:
    """What a run trains, on what, and what it is scored on."""

    corpus: Corpus
    dev: SentencePairs
    encoder: SentenceTransformer
    trainer: Trainer


def partial_of(output: Path) -> Path:
    """The folder of a run that is not done."""
    return output.with_name(output.name + ".partial")


def prepare(
    recipe: Recipe,
    data: Path,
    output: Path,
    *,
    cache: Path | None = None,
    save_minutes: float = SAVE_MINUTES,
    report_to: Sequence[str] = (),
) -> Prepared:
    """Prepare a run of `training.fit.train.train`, whose options these are; nothing is written.

    Raises a `TrainingError` for a recipe, data or backbone that cannot be used.
    """
    require_trackers(report_to)
    dev = _dev(data / "sts" / DEV_FILE, recipe.training.dev_pairs)
    kind = recipe.objective.example_kind
    corpus = read_corpus(data / "corpus", recipe.corpus, kind=kind, made=MADE)
    log.info("corpus: %s rows, sha256 %s", corpus.counts, corpus.sha256[:12])
    for source, changed in corpus.changed.items():
        log.warning("%s: %s", source, changed)
    if recipe.training.precision == "bf16" and not has_bfloat16():
        log.warning(NO_BFLOAT16)
    _require_rows(corpus, recipe)

    torch.manual_seed(recipe.seed)  # of the first weights of the selector and of a head
    encoder = new_encoder(recipe)
    fit_new_projections(encoder, recipe, corpus)
    loss = make_loss(encoder, recipe, corpus, cache, gather=num_processes() > 1)
    os.environ.pop(PRECISION_VARIABLE, None)  # of an earlier run; it would override the recipe
    reporting = Reporting(report_to, output.with_name(output.name + ".logs"))
    trainer = new_trainer(
        recipe, encoder, loss, corpus, dev, partial_of(output), save_minutes, reporting
    )
    os.environ.pop(PRECISION_VARIABLE, None)  # child processes would inherit it
    return Prepared(corpus, dev, encoder, trainer)


def _dev(file: Path, count: int) -> SentencePairs:
    """The pairs of dev that are scored. Raises `DataError` for those that can have no score."""
    dev = thinned(read_sentence_pairs(file), count)
    if len({*dev.gold}) < 2:
        taken = f", of which [training] dev_pairs = {count} takes {len(dev.gold)}" if count else ""
        raise DataError(
            f"{file}{taken}, has one gold score in all its pairs, and a correlation needs two: take"
            " more pairs, or another file."
        )
    return dev


def _require_rows(corpus: Corpus, recipe: Recipe) -> None:
    """Refuse a source that does not fill one batch: the trainer would leave it out silently."""
    size = recipe.training.batch_size
    for source, count in corpus.counts.items():
        if count < size:
            raise DataError(
                f"{source} gave {count} rows, fewer than a batch of {size}: "
                "raise its limit, leave it out, or lower [training] batch_size."
            )


def require_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker that transformers does not know, or whose package is not installed."""
    from transformers.integrations.integration_utils import get_available_reporting_integrations

    if not names:
        return
    installed = get_available_reporting_integrations()  # type: ignore[no-untyped-call]  # transformers is partly typed
    for name in names:
        if name not in installed:
            raise ConfigError(
                f"--report-to {name} is no tracker that transformers knows and that is installed"
                f" here ({', '.join(installed) or 'none is'}): install it, or leave it out."
            )
