"""Scores STS-B dev during training, in the way that the saved checkpoint is scored."""

import logging
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from s2sent.model.network.encoder import max_positions
from s2sent.training.errors import EncoderError
from s2sent.training.evaluation.depths.embeddings import encode_exits
from s2sent.training.evaluation.encoders import torch_encode
from s2sent.training.evaluation.sts import SentencePairs, spearman
from s2sent.training.recipe.recipe import Recipe

log = logging.getLogger(__name__)

DEV_METRIC = "eval_stsb_dev"  # Spearman x 100 of cosine


class DevEvaluator(SentenceEvaluator):
    """Scores STS-B dev as the saved checkpoint will: without autocast, texts cut at its own limit,
    cosines in double precision; on a GPU with matrix products of TF32. With ``depths`` it is
    the mean of these depths and full depth."""

    def __init__(self, dev: SentencePairs, max_seq_length: int, depths: Sequence[int] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.dev = dev
        self.max_seq_length = max_seq_length
        self.depths = depths

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        with truncated_to(model, self.max_seq_length), _without_autocast(model):
            scores = self.by_depth(model)
        return {DEV_METRIC: statistics.fmean(scores.values())}

    def by_depth(self, model: SentenceTransformer) -> dict[int, float]:
        """Spearman x 100 at each of the depths and, last, full depth; alone, it is depth 0."""
        with tf32(model.device.type):
            return self._by_depth(model)

    def _by_depth(self, model: SentenceTransformer) -> dict[int, float]:
        texts = (self.dev.first, self.dev.second)
        if not self.depths:
            encode = torch_encode(model)
            return {0: self._score(encode(texts[0]), encode(texts[1]))}
        first, second = (encode_exits(model, each, self.depths) for each in texts)
        scores = {depth: self._score(first[depth], second[depth]) for depth in first}
        log.info("dev by depth: %s", "  ".join(f"{d} {s:.2f}" for d, s in scores.items()))
        return scores

    def _score(self, first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
        """Spearman x 100; NaN of embeddings that have none, as of a training that diverged."""
        try:
            return spearman(first, second, self.dev.gold)
        except EncoderError:
            return math.nan


@contextmanager
def truncated_to(encoder: SentenceTransformer, limit: int) -> Iterator[None]:
    """Cut texts at ``limit`` tokens within the block, or where the encoder's positions end."""
    before = encoder.max_seq_length
    encoder.max_seq_length = fitting(encoder, limit)
    try:
        yield
    finally:
        encoder.max_seq_length = before


def fitting(encoder: SentenceTransformer, limit: int) -> int:
    """The limit in tokens, or where the encoder's positions end."""
    rows = (max_positions(part) for part in encoder.modules() if isinstance(part, Transformer))
    return min([limit, *(each for each in rows if each is not None)])


@contextmanager
def tf32(device_type: str) -> Iterator[None]:
    """Let a GPU multiply float32 matrices in TF32, which has 10 bits of mantissa, in the block."""
    before = torch.get_float32_matmul_precision()
    if device_type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _without_autocast(encoder: SentenceTransformer) -> Iterator[None]:
    """Undo, within the block, the autocast that accelerate puts around ``encoder``."""
    wrapped = vars(encoder).pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            vars(encoder)["forward"] = wrapped


def dev_evaluator(recipe: Recipe, dev: SentencePairs) -> DevEvaluator:
    """What scores a recipe's encoder on STS-B dev."""
    depths = recipe.elastic.depths if recipe.elastic else ()
    return DevEvaluator(dev, recipe.backbone.max_seq_length, depths)
