"""Models that people pick: random ones with the module lists and settings of the real ones.

Prompts, poolings, Dense layers, kinds of blocks and of tokenizers are theirs; sizes are not, but
for the width of blocks where it is asked for.
"""

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig

from tests.support.tiny import _byte_level_tokenizer, _save, tiny_backbone

WIDTH, TOKENS = 64, 128
SHAPE: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2}
GROUPED = SHAPE | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
LOCAL = ["sliding_attention", "full_attention"]
GEMMA = GROUPED | {
    "sliding_window": 32,
    "layer_types": LOCAL,
    "query_pre_attn_scalar": 32,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
QWEN = GROUPED | {"rope_theta": 1e6, "max_position_embeddings": 32768, "sliding_window": None}
MODERN = {"num_attention_heads": 2, "global_attn_every_n_layers": 2, "local_attention": 16}
TASK = "Instruct: Given a web search query, retrieve relevant passages\nQuery:"
GEMMA_PROMPTS = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "STS": "task: sentence similarity | query: ",
}
WIDENED = [(1, 4, False), (4, 1, False)]

# The backbone, its settings, the pooling, what stands behind it, and the prompts. A Dense layer is
# the numbers that it reads and gives, as multiples of the width, and whether it has a bias.
MODELS: dict[str, tuple[str, dict[str, Any], str, list[Any], dict[str, str]]] = {
    "EmbeddingGemma": (
        "gemma3_text",
        GEMMA | {"use_bidirectional_attention": True},
        "mean",
        [*WIDENED, "Normalize"],
        GEMMA_PROMPTS,
    ),
    "harrier 270m": ("gemma3_text", GEMMA, "lasttoken", ["Normalize"], {"web_search_query": TASK}),
    "Qwen3-Embedding": (
        "qwen3",
        QWEN,
        "lasttoken",
        ["Normalize"],
        {"query": TASK, "document": ""},
    ),
    "F2LLM": ("qwen3", QWEN, "lasttoken", ["Normalize"], {"query": TASK}),
    "granite r2": ("modernbert", SHAPE | MODERN, "cls", ["Normalize"], {}),
    "mmBERT": ("modernbert", SHAPE | MODERN | {"local_rope_theta": 16e4}, "mean", [], {}),
    "mdbr-leaf": (
        "bert",
        SHAPE | {"num_attention_heads": 2},
        "mean",
        [(1, 2, True)],
        {"query": "Represent this sentence for searching relevant passages: ", "document": ""},
    ),
}


# Settings of a few blocks as wide as those of the real models, for token ids below 2,048.
_MODERN_768 = {
    "vocab_size": 2048,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "local_attention": 128,
}
WIDE: dict[str, dict[str, Any]] = {
    "EmbeddingGemma": {
        "vocab_size": 2048,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
        "layer_types": [*LOCAL[:1], *LOCAL],
    },
    "Qwen3-Embedding": {
        "vocab_size": 2048,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "granite r2": _MODERN_768,
    "mmBERT": _MODERN_768,
    "mdbr-leaf": {
        "vocab_size": 2048,
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
    },
}


def save_model(folder: Path, name: str, *, wide: bool = False) -> Path:
    """Save a random model of `MODELS` to ``folder``; ``wide`` ones have the settings of `WIDE`."""
    kind, settings, mode, head, prompts = MODELS[name]
    settings = {**settings, **(WIDE[name] if wide else {})}
    width, std = settings["hidden_size"], 0.03 if wide else 0.15
    backbone = folder.with_name("backbone")
    if "num_key_value_heads" in settings:
        tokenizer = _byte_level_tokenizer(TOKENS)
        tokenizer.add_special_tokens({"pad_token": "<pad>", "bos_token": "<bos>"})
        first, last = ("<bos>:0 ", "") if kind == "gemma3_text" else ("", " <|end|>:0")
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{first}$A{last}",
            special_tokens=[("<bos>", tokenizer.bos_token_id), ("<|end|>", tokenizer.eos_token_id)],
        )
        ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        _save(backbone, AutoConfig.for_model(kind, **{**ids, **settings}), tokenizer, 0, std)
    else:
        tiny_backbone(backbone, kind, std=std, **settings)
    modules: list[Any] = [
        Transformer(str(backbone), max_seq_length=TOKENS),
        Pooling(width, pooling_mode=mode),
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for each in head:
            if each == "Normalize":
                modules.append(Normalize())
            else:
                read, given, bias = each
                function = torch.nn.Identity()
                dense = Dense(read * width, given * width, bias=bias, activation_function=function)
                modules.append(dense)
    encoder: SentenceTransformer = SentenceTransformer(
        modules=modules, device="cpu", prompts=prompts
    )
    encoder.save(str(folder), create_model_card=False)
    return folder
