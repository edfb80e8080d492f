"""Folders as transformers 5 saves them, and the vectors that it gives.

`python -m tests.support.transformers_5`, in an environment that holds transformers 5, prints the
expected numbers of `tests/model/network/loading/test_transformers_5.py`. Weights are drawn by their
names, so that every release makes the same ones.
"""

import json
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import AutoConfig, AutoModel

from tests.support.tiny import _tokenizer

TEXT = " ".join(["a man plays the guitar and the dog eats"] * 6)  # longer than any window here
WIDTH = 32
SHAPE = {
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
}
DECODER = {**SHAPE, "num_key_value_heads": 1, "head_dim": 16}
BY_KIND = ("full_attention", "sliding_attention")


def rope(theta: float = 1e6, kind: str = "default", **others: Any) -> dict[str, Any]:
    return {"rope_theta": theta, "rope_type": kind, **others}


def both(whole: dict[str, Any], local: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(BY_KIND, (whole, local), strict=True))


def kinds(places: str) -> list[str]:
    return [BY_KIND[letter == "l"] for letter in places]


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FROM = "original_max_position_embeddings"
LONG = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 8.0, FROM: 32}
LOCAL = {"sliding_window": 8, "layer_types": kinds("lllg")}
MODERN = {**SHAPE, "local_attention": 16, "layer_types": kinds("glgl")}
FOLDERS: dict[str, dict[str, Any]] = {
    "qwen3": {**DECODER, "rope_parameters": rope()},
    "llama": {**DECODER, "rope_parameters": rope(5e5, "llama3", **LLAMA3, **{FROM: 32})},
    "mistral": {**DECODER, "rope_parameters": rope(1e5, "yarn", factor=4.0, **{FROM: 64})},
    "phi3": {**DECODER, "rope_parameters": rope(1e4, "longrope", **LONG), FROM: 32},
    "gpt_neox": {**SHAPE, "rope_parameters": rope(3e4, partial_rotary_factor=0.5)},
    "gemma3_text": {
        **DECODER,
        **LOCAL,
        "use_bidirectional_attention": True,
        "rope_parameters": both(rope(1e6, "linear", factor=8.0), rope(3e4)),
    },
    "modernbert": {**MODERN, "rope_parameters": both(rope(8e4), rope(16e4))},
}


def a_folder(path: Path, family: str, **changes: Any) -> Path:
    """A sentence-transformers folder of a tiny model, with the settings of transformers 5."""
    tokenizer = _tokenizer(
        family, {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>"}, 128
    )
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "vocab_size": len(tokenizer)}
    config = {**FOLDERS[family], **ids, **changes}
    shape = {name: value for name, value in config.items() if name not in changes}
    shape.pop("rope_parameters", None)
    made: Any = AutoModel.from_config(AutoConfig.for_model(family, **shape))  # type: ignore[no-untyped-call]  # transformers is partly typed
    for part in (made, tokenizer):
        part.save_pretrained(path / "backbone")
    _draw(path / "backbone/model.safetensors")
    modules = [Transformer(str(path / "backbone")), Pooling(WIDTH), Normalize()]
    SentenceTransformer(modules=modules).save(str(path / "model"), create_model_card=False)
    written = {
        "config.json": {"model_type": family, "transformers_version": "5.24.0", **config},
        "tokenizer_config.json": {
            "backend": "tokenizers",
            "extra_special_tokens": ["<unk>"],
            "model_max_length": 128,
            "pad_token": "<pad>",
            "tokenizer_class": "TokenizersBackend",
        },
    }
    for name, settings in written.items():
        (path / "model" / name).write_text(json.dumps(settings))
    return path / "model"


def _draw(path: Path) -> None:
    """Draw the matrices of a file of weights, each by its own name."""
    weights = load_file(path)
    for name, weight in weights.items():
        if weight.dim() > 1:
            draw = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            torch.nn.init.normal_(weight, std=0.2, generator=draw)
    save_file(weights, path, metadata={"format": "pt"})


if __name__ == "__main__":
    for name in FOLDERS:
        with TemporaryDirectory() as scratch:
            folder = a_folder(Path(scratch), name)
            vector = SentenceTransformer(str(folder), device="cpu").encode([TEXT])[0]
            print(name, [round(float(x), 6) for x in vector[:4]])  # noqa: T201
