"""Folders that sentence-transformers alone has written, of a random model of any family."""

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import AutoConfig, AutoModel

from tests.support.tiny import tiny_backbone


def saved(
    folder: Path, family: str, tokens: int | None, pooled: int | None = None, **options: Any
) -> Path:
    """A folder of a random model of ``family``, by default pooled as wide as it says.

    ``tokens`` are read of a text; None names no length at all.
    """
    backbone = tiny_backbone(folder / "words", max_positions=tokens or 64)
    small = {"vocab_size": 256, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = AutoConfig.for_model(family, **{**small, **options})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made: Any = AutoModel.from_config(config)  # type: ignore[no-untyped-call]  # transformers is partly typed
        for matrix in (each for each in made.parameters() if each.dim() > 1):
            torch.nn.init.normal_(matrix, std=0.2)
    made.save_pretrained(backbone)
    transformer = Transformer(str(backbone))
    transformer.tokenizer.model_input_names = ["input_ids", "attention_mask"]
    transformer.tokenizer.padding_side = "right"
    transformer.max_seq_length = tokens or 10**30
    width = pooled or transformer.get_embedding_dimension()
    modules = [transformer, Pooling(width), Normalize()]
    SentenceTransformer(modules=modules).save(str(folder / "model"), create_model_card=False)
    return folder / "model"
