"""OPT: products of the other layout, and a backbone whose last states are narrower."""

import json
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer

from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.options import ExportError, ExportOptions, Precision
from s2sent.model.export.parity import parity_sentences
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.plain_checkpoint import saved

SHAPE: dict[str, Any] = {"hidden_size": 64, "ffn_dim": 48, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "max_position_embeddings": 64}
TEXTS = ["the cat sings", "Two happy Dogs read books in the green city at night " * 3]
LEAST = {"fp32": 0.999999, "weight-int8": 0.997, "int8": 0.99}


@pytest.mark.parametrize("width", [64, 32])
@pytest.mark.parametrize("precision", LEAST)
def test_every_precision_is_near_the_library(
    precision: Precision, width: int, tmp_path: Path
) -> None:
    folder = saved(tmp_path, "opt", 64, width, **SHAPE, word_embed_proj_dim=width)
    options = ExportOptions(sentences=parity_sentences()[:4], precision=precision)
    served = OnnxEncoder(export_checkpoint(folder, tmp_path / "artifact", options))
    cosines = (served.encode(TEXTS) * SentenceTransformer(str(folder)).encode(TEXTS)).sum(1)
    assert cosines.min() > LEAST[precision]
    pooling = json.loads((tmp_path / "artifact/1_Pooling/config.json").read_text())
    assert served.dim == pooling["word_embedding_dimension"] == width


def test_a_projection_has_no_exits_and_no_other_width(tmp_path: Path) -> None:
    shape = SHAPE | {"word_embed_proj_dim": 32}
    folder = saved(tmp_path / "right", "opt", 64, 32, **shape)
    with pytest.raises(ExportError, match="opt give 64 numbers a token and the backbone 32"):
        export_checkpoint(folder, tmp_path / "artifact", ExportOptions(depths=(1,)))
    wrong = saved(tmp_path / "wrong", "opt", 64, **shape)
    with pytest.raises(CheckpointError, match="gives vectors of 32 numbers and its modules say 64"):
        export_checkpoint(wrong, tmp_path / "artifact", ExportOptions())
