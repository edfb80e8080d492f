"""Fit an S2Sent gate to a frozen backbone, from top to bottom.

    corpus -> summaries of its texts, once -> contrastive steps on the gate alone
           -> the best gate on STS-B dev -> checkpoint, loaded again and scored again

The loss is InfoNCE over the pairs of a batch, in both directions (arXiv 1807.03748, Eq. 4). One
seed gives one checkpoint, byte for byte, on the same machine with the same libraries.
"""

import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn import functional

from model.encoder import build_encoder, get_selector, load_encoder
from model.selector import S2SentSelector
from training.backbones import origin, resolve, width_of
from training.config import GateConfig, Recipe
from training.corpus import Corpus, read_corpus
from training.encoders import torch_encode
from training.errors import ConfigError
from training.evaluation import DEV_FILE, SentencePairs, read_sentence_pairs, spearman
from training.record import write_record
from training.summaries import Summaries, cached_summaries, embed

log = logging.getLogger(__name__)

DEV_TOLERANCE = 0.01  # Spearman x 100: other batch shapes move cosines in the last bits


@dataclass(frozen=True)
class DevSet:
    """The sentence pairs that choose the checkpoint, as summaries of their M distinct sentences."""

    summaries: Summaries
    rows: Tensor  # [pairs, 2] int64, into the summaries
    gold: list[float]

    def score(self, embeddings: Tensor) -> float:
        """Spearman x 100 of the embeddings [M, D] of the distinct sentences."""
        first, second = (embeddings[column].numpy() for column in self.rows.T)
        return spearman(first, second, self.gold)

    @torch.no_grad()
    def score_gate(self, selector: S2SentSelector) -> float:
        """Spearman x 100 of what the selector makes of the sentences."""
        return self.score(embed(selector.eval(), self.summaries))


@dataclass(frozen=True)
class Fit:
    """The best gate: its weights, its step, its dev score, and the scores on the way there."""

    weights: dict[str, Tensor]
    step: int
    dev: float
    curve: list[tuple[int, float]]  # (step, Spearman x 100), the untrained gate first


def fit_gate(recipe: Recipe, data: Path, output: Path, *, cache: Path | None = None) -> Fit:
    """Carry out a recipe: train on ``data/corpus``, choose on ``data/sts``, save to ``output``.

    ``cache`` is a folder where sentence summaries are kept between runs. Raises a `TrainingError`
    for a recipe, data or backbone that cannot be used, and when ``output`` exists.
    """
    if output.exists():
        raise ConfigError(f"{output} exists already: name a new folder, or delete it first.")
    dev_pairs = read_sentence_pairs(data / "sts" / DEV_FILE)
    corpus = read_corpus(data / "corpus", recipe.corpus.limits())
    log.info("corpus: %s pairs, sha256 %s", corpus.counts, corpus.sha256[:12])

    torch.manual_seed(recipe.seed)  # decides the selector's first weights
    encoder = _new_encoder(recipe)
    selector = get_selector(encoder)
    dev = _dev_set(encoder, dev_pairs, cache)
    texts = corpus.texts()
    summaries = cached_summaries(encoder, texts, cache)
    pairs = _rows(corpus.pairs, texts)

    fit = train(selector, summaries, pairs, recipe.gate, dev.score_gate, seed=recipe.seed)
    selector.load_state_dict(fit.weights)
    _save(encoder, output, _describe(recipe, corpus, fit, dev, selector), dev_pairs, fit.dev)
    return fit


def train(
    selector: S2SentSelector,
    summaries: Summaries,
    pairs: Tensor,
    config: GateConfig,
    score_gate: Callable[[S2SentSelector], float],
    *,
    seed: int,
) -> Fit:
    """Train the selector's gate on ``pairs`` [P, 2] of rows of ``summaries``.

    Returns the gate that ``score_gate`` liked best, the untrained one among them; of equals, the
    first. ``selector`` is left as the last step made it.
    """
    optimizer = torch.optim.AdamW(selector.parameters(), config.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / config.steps)
    batches = shuffled(pairs, config.batch_size, seed=seed)
    score = score_gate(selector)
    best = Fit(_copy(selector), 0, score, curve := [(0, score)])
    started = time.monotonic()
    for step in range(1, config.steps + 1):
        batch = next(batches)  # [B, 2]
        selector.train()
        embeddings = embed(selector, summaries[batch.T.flatten()])  # [2 B, D], firsts then seconds
        first, second = embeddings.chunk(2)
        loss = info_nce(first, second, config.temperature)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        schedule.step()
        if step % config.eval_every == 0 or step == config.steps:
            curve.append((step, score := score_gate(selector)))
            if score > best.dev:
                best = Fit(_copy(selector), step, score, curve)
            rate = step * config.batch_size / (time.monotonic() - started)
            log.info(
                "step %d/%d  loss %.4f  dev %.2f  best %.2f at %d  %.0f pairs/s",
                *(step, config.steps, loss.item(), score, best.dev, best.step, rate),
            )
    return best


def info_nce(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of finding each row's partner among the other column's rows, both ways.

    ``first`` and ``second`` are [B, D] of any norm; the similarity is the cosine.
    """
    first, second = functional.normalize(first, dim=-1), functional.normalize(second, dim=-1)
    logits = first @ second.T / temperature  # [B, B]
    partner = torch.arange(len(logits))
    forth = functional.cross_entropy(logits, partner)
    back = functional.cross_entropy(logits.T, partner)
    return (forth + back) / 2


def shuffled(pairs: Tensor, batch_size: int, *, seed: int) -> Iterator[Tensor]:
    """Yield batches of rows without end, each pass over them in a new order.

    Batches are full, so the last rows of a pass may be left out of it; with fewer rows than
    ``batch_size``, a batch is all of them.
    """
    generator = torch.Generator().manual_seed(seed)
    size = min(batch_size, len(pairs))
    while True:
        order = torch.randperm(len(pairs), generator=generator)
        for start in range(0, len(pairs) - size + 1, size):
            yield pairs[order[start : start + size]]


def _new_encoder(recipe: Recipe) -> SentenceTransformer:
    folder = resolve(recipe.backbone.name)
    config = recipe.selector_config(width_of(folder))
    try:
        return build_encoder(folder, config, max_seq_length=recipe.backbone.max_seq_length)
    except ValueError as error:
        raise ConfigError(f"[selector] does not fit {recipe.backbone.name}: {error}") from error


def _dev_set(encoder: SentenceTransformer, pairs: SentencePairs, cache: Path | None) -> DevSet:
    sentences = list(dict.fromkeys(pairs.first + pairs.second))
    rows = _rows(zip(pairs.first, pairs.second, strict=True), sentences)
    return DevSet(cached_summaries(encoder, sentences, cache), rows, pairs.gold)


def _rows(pairs: Iterable[tuple[str, str]], texts: list[str]) -> Tensor:
    """Each pair [P, 2] as the places of its two texts in ``texts``."""
    place = {text: index for index, text in enumerate(texts)}
    return torch.tensor([(place[first], place[second]) for first, second in pairs])


def _copy(selector: S2SentSelector) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in selector.state_dict().items()}


def _describe(
    recipe: Recipe, corpus: Corpus, fit: Fit, dev: DevSet, selector: S2SentSelector
) -> dict[str, Any]:
    """The record of this run, with what the same blocks give without a gate beside it."""
    pooled = dev.summaries.pooled  # [M, N, D]
    assert selector.spatial_selection is not None  # noqa: S101 - `summarise` refused it
    with torch.no_grad():
        weights = selector.spatial_selection(dev.summaries.squeezed, pooled.shape[1])  # [N, M, D]
    return {
        "recipe": asdict(recipe),
        "seed": recipe.seed,
        "backbone": origin(recipe.backbone.name),
        "corpus": {"sha256": corpus.sha256, "pairs": corpus.counts},
        "dev": {
            "task": "STS-B dev, Spearman x 100",
            "score": round(fit.dev, 4),
            "step": fit.step,
            "last_block_alone": round(dev.score(pooled[:, -1]), 4),
            "average_of_blocks": round(dev.score(pooled.mean(1)), 4),
            "curve": [[step, round(score, 4)] for step, score in fit.curve],
        },
        "mean_block_weights": [round(w, 4) for w in weights.mean((1, 2)).tolist()],
    }


def _save(
    encoder: SentenceTransformer,
    output: Path,
    record: dict[str, Any],
    dev: SentencePairs,
    expected: float,
) -> None:
    """Write the checkpoint; it appears at ``output`` only once it scored as it did in training."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        folder = Path(scratch, "checkpoint")
        encoder.save(str(folder), create_model_card=False)
        write_record(folder, record)
        encode = torch_encode(load_encoder(folder))
        score = spearman(encode(dev.first), encode(dev.second), dev.gold)
        if abs(score - expected) > DEV_TOLERANCE:
            raise RuntimeError(f"the saved checkpoint scores {score:.4f}, not {expected:.4f}")
        folder.rename(output)
    log.info("saved %s: dev %.2f, loaded again and checked", output, score)
