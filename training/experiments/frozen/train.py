"""Trains a head on block states, with the losses of `training.objectives`.

The ordinary trainer runs a whole encoder in every step, or keeps the states of all tokens.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor, nn

from s2sent.training.experiments.frozen.heads import Head
from s2sent.training.experiments.frozen.states import BlockStates
from s2sent.training.objectives.similarity import cosine

TEMPERATURE = 0.05
MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class Schedule:
    """The length and rate of a run; the rate falls linearly to 0."""

    steps: int
    learning_rate: float
    eval_every: int
    batch_size: int = 64  # pairs


def train_head(
    head: nn.Module,
    loss_of: Callable[[Tensor], Tensor],
    score: Callable[[], float],
    batches: Iterator[Tensor],
    schedule: Schedule,
) -> tuple[int, float]:
    """Train ``head`` by the loss of each batch; returns the kept step and its score.

    The head is left as it was at that step, which is 0 where no trained step scored higher than the
    start. One without parameters is scored as it is.
    """
    best, step, kept = score(), 0, copy.deepcopy(head.state_dict())
    parameters = list(head.parameters())
    if not parameters:
        return step, best
    optimizer = torch.optim.AdamW(parameters, lr=schedule.learning_rate, weight_decay=0)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, total_iters=schedule.steps)
    for number, rows in zip(range(1, schedule.steps + 1), batches, strict=False):
        optimizer.zero_grad()
        loss_of(rows).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
        optimizer.step()
        decay.step()
        if number % schedule.eval_every == 0 or number == schedule.steps:
            scored = score()
            if scored > best:
                best, step, kept = scored, number, copy.deepcopy(head.state_dict())
    head.load_state_dict(kept)
    return step, best


def batch_loss(head: Head, states: BlockStates, pairs: Tensor, blocks: int) -> Tensor:
    """The contrast of the two texts of pairs [B, 2], rows of ``states``: the full path's loss."""
    views = [head(*states.batch(texts, blocks)) for texts in pairs.T]
    loss = MultipleNegativesRankingLoss(nn.Identity(), 1 / TEMPERATURE, cosine)  # type: ignore[arg-type]  # it only keeps the model
    return loss.compute_loss_from_embeddings(views, torch.empty(0))


def batches_of(pairs: Tensor, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Batches [B, 2] of pairs [P, 2] without end, each pair at most once an epoch.

    Equal seeds give equal batches; a last batch that is not full is left out. Fewer pairs than
    ``batch_size`` are one batch.
    """
    order, size = np.random.default_rng(seed), min(batch_size, len(pairs))
    while True:
        shuffled = pairs[order.permutation(len(pairs))]
        yield from shuffled[: len(pairs) // size * size].view(-1, size, 2)
