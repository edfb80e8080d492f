"""Trains a head on cached block states, with the losses of `training.objectives`."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor, nn

from s2sent.training.evaluation.development import ALL_PAIRS, WITHOUT_OVERLAP
from s2sent.training.evaluation.retrieval import retrieval_scores
from s2sent.training.evaluation.sts import SentencePairs, spearman
from s2sent.training.experiments.frozen.heads import Head
from s2sent.training.experiments.frozen.setting import Setting
from s2sent.training.experiments.score import WEIGHED_TEXTS
from s2sent.training.objectives.cosine import cosine
from s2sent.training.objectives.distillation import pair_distillation_loss

Objective = Literal["contrastive", "distillation", "sfp"]
Scores = dict[str, float]

TEMPERATURE = 0.05
MAX_GRADIENT_NORM = 1.0
CHOSEN_ON = WITHOUT_OVERLAP  # the score that chooses the step


@dataclass(frozen=True)
class Schedule:
    """The length and rate of a run; the rate falls linearly to 0."""

    steps: int
    learning_rate: float
    eval_every: int
    batch_size: int = 64  # pairs


def train_head(
    head: nn.Module,
    setting: Setting,
    blocks: Sequence[int],
    objective: Objective,
    schedule: Schedule,
    seed: int,
) -> dict[str, Any]:
    """Train ``head`` on the states of ``blocks``; equal seeds see equal batches, whatever the head.

    It is left as it was at the kept step, ``step``, which is 0 where no trained step scored higher
    than the start; a head without parameters is scored as it is. Returned are the scores at the
    start and at that step ("chosen"), and what `_described` says of the weights at that step.
    """
    start = development_scores(head, setting, blocks)
    first_weights = _weights(head, setting, blocks)
    parameters = list(head.parameters())
    if not parameters:
        return {"step": 0, "start": start, "chosen": start, **_described(None, None)}
    optimizer = torch.optim.AdamW(parameters, lr=schedule.learning_rate, weight_decay=0)
    decay = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=1, end_factor=0, total_iters=schedule.steps
    )
    best, step = start, 0
    chosen = copy.deepcopy(head.state_dict())
    for number, rows in enumerate(_batches(setting.pairs, schedule, seed), start=1):
        loss = batch_loss(head, setting, rows, blocks, objective)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
        optimizer.step()
        decay.step()
        if number % schedule.eval_every == 0 or number == schedule.steps:
            scores = development_scores(head, setting, blocks)
            if scores[CHOSEN_ON] > best[CHOSEN_ON]:
                best, step, chosen = scores, number, copy.deepcopy(head.state_dict())
    head.load_state_dict(chosen)
    described = _described(first_weights, _weights(head, setting, blocks))
    return {"step": step, "start": start, "chosen": best, **described}


def batch_loss(
    head: Head,
    setting: Setting,
    rows: NDArray[np.int64],
    blocks: Sequence[int],
    objective: Objective,
) -> Tensor:
    """The loss of the pairs ``rows`` [B]: the full path's, from cached states.

    "contrastive" contrasts the two texts of a pair, "sfp" Rep2 and Rep1 of its first text. In
    "distillation" cosines follow those of the whole backbone, its last block pooled.
    """
    pairs, states = setting.pairs[rows], setting.states
    if objective == "sfp":
        rep2 = states.batch(pairs[:, 0], blocks, second=True)
        return _contrast([head(*rep2), head(*states.batch(pairs[:, 0], blocks))])
    views = list(head(*states.batch(pairs.T.reshape(-1), blocks)).chunk(2))
    if objective == "contrastive":
        return _contrast(views)
    guide = torch.from_numpy(np.array(states.pooled[pairs, -1]))
    return pair_distillation_loss(torch.stack(views, 1), guide)


def _contrast(views: list[Tensor]) -> Tensor:
    loss = MultipleNegativesRankingLoss(nn.Identity(), 1 / TEMPERATURE, cosine)  # type: ignore[arg-type]  # it only keeps the model
    return loss.compute_loss_from_embeddings(views, torch.empty(0))


def development_scores(head: Head, setting: Setting, blocks: Sequence[int]) -> Scores:
    """STS-B dev with and without its overlap and the retrieval of packages, as far as given."""
    encode = setting.texts.encode_by(head, blocks)

    def correlation(pairs: SentencePairs) -> float:
        return spearman(encode(pairs.first), encode(pairs.second), pairs.gold)

    scores = {} if setting.decoder else {ALL_PAIRS: correlation(setting.dev.all)}
    scores[CHOSEN_ON] = correlation(setting.dev.without_overlap)
    if not setting.queries:
        return scores
    return scores | retrieval_scores(encode(setting.queries), encode(setting.documents))


@torch.no_grad()
def _weights(head: Any, setting: Setting, blocks: Sequence[int]) -> Tensor | None:
    """The fusion weights [N, B, D] on some development texts; None for a head without."""
    if not hasattr(head, "weights"):
        return None
    _, coefficients, lengths = setting.texts.states.batch(slice(WEIGHED_TEXTS), blocks)
    weights: Tensor = head.weights(coefficients, lengths).clone()
    return weights


def _described(first: Tensor | None, kept: Tensor | None) -> dict[str, Any]:
    """What a line says of fusion weights [N, B, D]; None for a head without.

    The largest change of a weight's mean over texts since step 0, the means over texts and
    features, and the standard deviation over texts, its mean over blocks and features.
    """
    if first is None or kept is None:
        return dict.fromkeys(("weight_change", "block_weights", "spread"))
    return {
        "weight_change": float((kept.mean(1) - first.mean(1)).abs().max()),
        "block_weights": kept.mean((1, 2)).tolist(),
        "spread": float(kept.std(1).mean()),
    }


def _batches(
    pairs: NDArray[np.int64], schedule: Schedule, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Batches of pairs' rows, each once an epoch; a last batch that is not full is left out."""
    order, start = np.random.default_rng(seed), 0
    shuffled = order.permutation(len(pairs))
    for _ in range(schedule.steps):
        if start + schedule.batch_size > len(shuffled):
            shuffled, start = order.permutation(len(pairs)), 0
        yield shuffled[start : start + schedule.batch_size]
        start += schedule.batch_size
