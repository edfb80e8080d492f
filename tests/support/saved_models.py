"""Tiny models of every family of docs/encoders.md, as the installed libraries save them.

`python -m tests.support.saved_models FOLDER` writes a folder for each, with the vectors that
sentence-transformers gives. Another release of the libraries is compared with them.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import AutoConfig

from s2sent.model.export.parity import parity_sentences
from tests.support.tiny import _byte_level_tokenizer, _save, tiny_backbone

WIDTH = 32
VECTORS = "vectors.npy"
ENCODERS = (
    *("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra"),
    *("mpnet", "t5", "modernbert", "deberta-v2"),
)
SHAPE = {
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
GROUPED = {**SHAPE, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 5e5}
LOCAL = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}
DECODERS: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": None},
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "gemma3_text": {**GROUPED, **LOCAL},
    "gemma3_text both ways": {**GROUPED, **LOCAL, "use_bidirectional_attention": True},
    "gpt2": SHAPE,
    "opt": {**SHAPE, "ffn_dim": 64, "word_embed_proj_dim": WIDTH},
}
FAMILIES = (*ENCODERS, *DECODERS)
TEXTS = [*parity_sentences()[:10], "two happy dogs read books in the green city at night " * 6]


def save_model(folder: Path, family: str) -> Path:
    """Save a model of ``family``, decoders by their last token, and its vectors of `TEXTS`."""
    backbone = folder.with_name(f"{folder.name}-backbone")
    if family in DECODERS:
        tokenizer = _byte_level_tokenizer(128)
        tokenizer.pad_token = tokenizer.eos_token
        ids = {"vocab_size": len(tokenizer) + 8, "pad_token_id": tokenizer.pad_token_id}
        config = AutoConfig.for_model(family.partition(" ")[0], **ids, **DECODERS[family])
        _save(backbone, config, tokenizer, seed=0)
    else:
        tiny_backbone(backbone, family, width=WIDTH, num_layers=2)
    mode = "lasttoken" if family in DECODERS and "both ways" not in family else "mean"
    pooling = Pooling(WIDTH, pooling_mode=mode)
    transformer = Transformer(str(backbone), max_seq_length=64)
    encoder: SentenceTransformer = SentenceTransformer(
        modules=[transformer, pooling, Normalize()], device="cpu"
    )
    encoder.save(str(folder), create_model_card=False)
    # transformers 4 halves the window of a Gemma that sees both sides at each load.
    again: SentenceTransformer = SentenceTransformer(str(folder), device="cpu")
    np.save(folder / VECTORS, again.encode(TEXTS, batch_size=1))
    return folder


if __name__ == "__main__":
    for family in FAMILIES:
        save_model(Path(sys.argv[1], family), family)
