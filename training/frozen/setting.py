"""The texts of a frozen experiment and their states: training pairs and development data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from model.network.encoder import build_plain_encoder
from model.network.selector import SelectorConfig
from training.backbones import resolve
from training.corpus import Corpus, read_corpus
from training.evaluation.development import read_development_pairs
from training.evaluation.retrieval import read_retrieval
from training.evaluation.sts import SentencePairs, distinct
from training.frozen.states import BlockStates, cached_states
from training.recipe import CorpusPart

CORPUS = (
    CorpusPart(source="wikisplit", limit=5000),
    CorpusPart(source="pan_paraphrase", limit=2500),
)
TRAINING_TOKENS = 64
DEV_TOKENS = 256


@dataclass(frozen=True)
class PairRows:
    """Rows of the development states: two lists of sentences and their gold scores."""

    first: list[int]
    second: list[int]
    gold: list[float]


@dataclass(frozen=True)
class Setting:
    """Everything that the runs of an experiment share.

    ``pairs`` [P, 2] are rows of ``states``; the other rows are of ``dev_states``.
    """

    backbone: str
    depth: int
    width: int
    states: BlockStates
    pairs: NDArray[np.int64]
    dev_states: BlockStates
    dev: PairRows
    dev_without_overlap: PairRows
    queries: list[int]
    documents: list[int]
    corpus_sha256: str


def read_setting(
    backbone: str,
    data: Path,
    retrieval: Path,
    cache: Path,
    *,
    corpus: Sequence[CorpusPart] = CORPUS,
) -> Setting:
    """Read training pairs and development data, and compute or load the states of their texts.

    No file of a test task is scored. Raises a `TrainingError` for data or a backbone that cannot
    be used.
    """
    encoder = build_plain_encoder(resolve(backbone))
    width = int(encoder.get_embedding_dimension() or 0)
    rows = read_corpus(data / "corpus", corpus, kind="pairs")
    texts = rows.texts()
    dev = read_development_pairs(data / "sts")
    queries, documents = read_retrieval(retrieval)
    dev_texts = distinct(dev.all.first, dev.all.second, queries, documents)
    place = {text: row for row, text in enumerate(dev_texts)}
    return Setting(
        backbone=backbone,
        depth=int(encoder[0].auto_model.config.num_hidden_layers),
        width=width,
        states=_states(encoder, backbone, texts, cache, TRAINING_TOKENS),
        pairs=_pair_rows(rows, texts),
        dev_states=_states(encoder, backbone, dev_texts, cache, DEV_TOKENS),
        dev=_rows_of(dev.all, place),
        dev_without_overlap=_rows_of(dev.without_overlap, place),
        queries=[place[text] for text in queries],
        documents=[place[text] for text in documents],
        corpus_sha256=rows.sha256,
    )


def _states(
    encoder: SentenceTransformer, backbone: str, texts: list[str], cache: Path, tokens: int
) -> BlockStates:
    config = SelectorConfig(width=int(encoder.get_embedding_dimension() or 0))
    encoder.max_seq_length = tokens
    return cached_states(encoder, backbone, texts, config, cache)


def _pair_rows(corpus: Corpus, texts: list[str]) -> NDArray[np.int64]:
    place = {text: row for row, text in enumerate(texts)}
    pairs = [
        (place[example[0]], place[example[1]])
        for examples in corpus.parts.values()
        for example in examples
    ]
    return np.array(pairs, np.int64)


def _rows_of(pairs: SentencePairs, place: dict[str, int]) -> PairRows:
    return PairRows(
        [place[text] for text in pairs.first], [place[text] for text in pairs.second], pairs.gold
    )
