"""Folders that sentence-transformers embeds though they are unusual: exported as it embeds them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.options import ExportOptions
from s2sent.model.export.parity import parity_sentences
from s2sent.model.network.encoder import load_encoder
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.plain_checkpoint import saved

SHAPE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "max_position_embeddings": 64}
TEXTS = ["the cat sings", "Two happy Dogs read books in the green city at night " * 3]
FEW = ExportOptions(sentences=parity_sentences()[:4], allow_unfused_attention=True)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    "settings",
    [
        {"model_args": {"torch_dtype": "bfloat16"}},
        {"model_args": {"torch_dtype": "auto"}},
        {"model_kwargs": {"dtype": "float16"}},
        {},
    ],
)
def test_weights_are_read_as_float32_whatever_they_are_stored_as(
    stored: torch.dtype, settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = saved(tmp_path, "bert", 64, **SHAPE)
    weights = {name: w.to(stored) for name, w in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    edit(folder / "config.json", dtype=str(stored).removeprefix("torch."))
    edit(folder / "sentence_bert_config.json", **settings)
    served = OnnxEncoder(export_checkpoint(folder, tmp_path / "artifact", FEW))
    library = SentenceTransformer(str(folder), model_kwargs={"dtype": torch.float32})
    np.testing.assert_allclose(served.encode(TEXTS), library.encode(TEXTS), atol=1e-5)
    assert {each.dtype for each in load_encoder(folder).parameters()} == {torch.float32}
