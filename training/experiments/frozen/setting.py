"""The texts of a frozen experiment and their states: training pairs and development data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from s2sent.model.artifact.template import CleanUp
from s2sent.model.network.encoder import build_plain_encoder, build_prompt_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.template import REP1, require_padding, template_text
from s2sent.training.backbones import resolve
from s2sent.training.bfloat16 import has_bfloat16
from s2sent.training.corpus import read_corpus
from s2sent.training.evaluation.development import DevelopmentPairs, read_development_pairs
from s2sent.training.evaluation.retrieval import read_retrieval
from s2sent.training.evaluation.sts import Encode, distinct
from s2sent.training.experiments.frozen.heads import MOST_BLOCKS, Head
from s2sent.training.experiments.frozen.states import BlockStates, cached_states
from s2sent.training.loop.lookup import depth_of
from s2sent.training.recipe.recipe import CorpusPart

CORPUS = (
    CorpusPart(source="wikisplit", limit=5000),
    CorpusPart(source="pan_paraphrase", limit=2500),
)
DECODER_PAIRS = 1000  # of a decoder's corpus, unless a budget says otherwise
TRAINING_TOKENS, DEV_TOKENS = 64, 256
CHUNK = 4096  # texts that a head embeds at once


def short_texts(pairs: int) -> tuple[CorpusPart, ...]:
    """Short texts, since a decoder reads each inside a template: eight captions of ten pairs."""
    shares = {"captions": 8, "wikisplit": 1, "pan_paraphrase": 1}
    return tuple(
        CorpusPart(source=source, limit=pairs * share // 10) for source, share in shares.items()
    )


@dataclass(frozen=True)
class DecoderInput:
    """How a causal backbone is read: its template, the blocks that are kept, the precision.

    Of a template with ``[REP1]`` that token is the sentence's, else the last one. ``bf16`` computes
    in bfloat16: by default where the machine has instructions for it.
    """

    template: str
    clean_up: CleanUp = "statement"
    num_blocks: int = MOST_BLOCKS
    bf16: bool = field(default_factory=has_bfloat16)

    @property
    def two_stages(self) -> bool:
        """Whether the template also has a Rep2."""
        return REP1 in self.template

    @classmethod
    def inside(cls, template: str, blocks: int) -> "DecoderInput":
        """For a backbone of so many blocks, inside a preset's template or a text.

        Raises `TemplateError` for a text without a place for the sentence.
        """
        return cls(template_text(template), num_blocks=min(MOST_BLOCKS, blocks))


class Texts:
    """Texts of evaluation and their states."""

    def __init__(self, texts: Sequence[str], states: BlockStates) -> None:
        self.states = states
        self._row = {text: row for row, text in enumerate(texts)}

    @torch.no_grad()
    def encode_by(self, head: Head, blocks: Sequence[int]) -> Encode:
        """What gives the embeddings [n, D] of n of the texts by a head on the states of blocks."""
        parts = [
            head(*self.states.batch(slice(start, start + CHUNK), blocks))
            for start in range(0, len(self._row), CHUNK)
        ]
        embeddings: NDArray[np.float32] = torch.cat(parts).numpy()
        return lambda texts: embeddings[[self._row[text] for text in texts]]


@dataclass(frozen=True)
class Setting:
    """Everything that the runs of an experiment share.

    ``pairs`` [P, 2] are rows of ``states``. A decoder reads no more of STS-B dev than the pairs
    without overlap.
    """

    backbone: str
    depth: int
    width: int
    states: BlockStates
    pairs: NDArray[np.int64]
    texts: Texts  # of development data
    dev: DevelopmentPairs
    queries: Sequence[str]
    documents: Sequence[str]
    corpus_sha256: str
    decoder: DecoderInput | None = None

    def describe(self) -> dict[str, Any]:
        """What says, in a run's line, which setting it was."""
        read = {} if self.decoder is None else {"reading": asdict(self.decoder)}
        return {"backbone": self.backbone, "corpus_sha256": self.corpus_sha256, **read}

    def reads_as(self, line: Mapping[str, Any]) -> bool:
        """Whether a run's line is of this backbone, read as here; its corpus may be another."""
        own = self.describe()
        return all(line.get(name) == own.get(name) for name in ("backbone", "reading"))


def read_setting(
    backbone: str,
    data: Path,
    retrieval: Path | None,
    cache: Path,
    *,
    corpus: Sequence[CorpusPart] = CORPUS,
    decoder: DecoderInput | None = None,
) -> Setting:
    """Read training pairs and development data, and compute or load the states of their texts.

    No file of a test task is scored. Raises a `TrainingError` for data or a backbone that cannot be
    used.
    """
    rows = read_corpus(data / "corpus", corpus, kind="pairs")
    texts = rows.texts()
    dev = read_development_pairs(data / "sts")
    queries, documents = read_retrieval(retrieval) if retrieval else ([], [])
    read = dev.without_overlap if decoder else dev.all
    dev_texts = distinct(read.first, read.second, queries, documents)
    encoder = frozen_encoder(backbone, decoder)
    place = {text: row for row, text in enumerate(texts)}
    examples = [each for part in rows.parts.values() for each in part]
    return Setting(
        backbone=backbone,
        depth=depth_of(encoder),
        width=int(encoder.get_embedding_dimension() or 0),
        states=states_of(encoder, texts, cache, decoder, training=True),
        pairs=np.array([(place[each[0]], place[each[1]]) for each in examples], np.int64),
        texts=Texts(dev_texts, states_of(encoder, dev_texts, cache, decoder)),
        dev=dev,
        queries=queries,
        documents=documents,
        corpus_sha256=rows.sha256,
        decoder=decoder,
    )


def frozen_encoder(backbone: str, decoder: DecoderInput | None) -> SentenceTransformer:
    """The backbone without a selector: mean-pooled, or read as ``decoder`` says.

    Raises `TemplateError` for a template that cannot be used, or a decoder without one.
    """
    folder = resolve(backbone)
    if decoder is None:
        plain = build_plain_encoder(folder)
        require_padding(plain.tokenizer, backbone)
        return plain
    encoder = build_prompt_encoder(
        folder,
        None,
        [decoder.template],
        pooling="rep1" if decoder.two_stages else "last_token",
        clean_up=decoder.clean_up,
    )
    return encoder.to(torch.bfloat16) if decoder.bf16 else encoder


def states_of(
    encoder: SentenceTransformer,
    texts: list[str],
    cache: Path,
    decoder: DecoderInput | None,
    *,
    training: bool = False,
) -> BlockStates:
    """The states of texts of training, with Rep2 where there is one, or of evaluation."""
    preset = "decoder" if decoder else "default"
    config = SelectorConfig.preset(preset, width=int(encoder.get_embedding_dimension() or 0))
    encoder.max_seq_length = TRAINING_TOKENS if training else DEV_TOKENS
    second = decoder is not None and training and decoder.two_stages
    blocks = decoder.num_blocks if decoder else None
    return cached_states(encoder, texts, config, cache, num_blocks=blocks, with_second=second)
