"""Models that people pick: tiny random ones with the module lists and settings of the real ones.

Prompts, poolings, Dense layers, kinds of blocks and of tokenizers are theirs; sizes are not.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig

from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.options import ExportOptions, Precision
from s2sent.model.export.parity import parity_sentences
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.tiny import _byte_level_tokenizer, _save, tiny_backbone

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

WIDTH = 64
FEW = parity_sentences()[:12]
SHAPE: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 4}
GROUPED = SHAPE | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
LOCAL = ["sliding_attention"] * 3 + ["full_attention"]
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
MODERN = {"num_attention_heads": 2, "global_attn_every_n_layers": 3, "local_attention": 16}
TASK = "Instruct: Given a web search query, retrieve relevant passages\nQuery:"
GEMMA_PROMPTS = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "STS": "task: sentence similarity | query: ",
}
WIDENED = [("Dense", WIDTH, 4 * WIDTH, False), ("Dense", 4 * WIDTH, WIDTH, False), "Normalize"]

# The backbone, its settings, the pooling, what stands behind it, and the prompts.
MODELS: dict[str, tuple[str, dict[str, Any], str, list[Any], dict[str, str]]] = {
    "EmbeddingGemma": (
        "gemma3_text",
        GEMMA | {"use_bidirectional_attention": True},
        "mean",
        WIDENED,
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
        [("Dense", WIDTH, 2 * WIDTH, True)],
        {"query": "Represent this sentence for searching relevant passages: ", "document": ""},
    ),
}


def save_model(folder: Path, name: str) -> Path:
    kind, settings, mode, head, prompts = MODELS[name]
    backbone = folder.with_name("backbone")
    if "num_key_value_heads" in settings:
        tokenizer = _byte_level_tokenizer(128)
        tokenizer.add_special_tokens({"pad_token": "<pad>", "bos_token": "<bos>"})
        first, last = ("<bos>:0 ", "") if kind == "gemma3_text" else ("", " <|end|>:0")
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{first}$A{last}",
            special_tokens=[("<bos>", tokenizer.bos_token_id), ("<|end|>", tokenizer.eos_token_id)],
        )
        ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        _save(backbone, AutoConfig.for_model(kind, **{**ids, **settings}), tokenizer, seed=0)
    else:
        tiny_backbone(backbone, kind, width=WIDTH, num_layers=4)
        config = json.loads((backbone / "config.json").read_text())
        written = {name: value for name, value in settings.items() if name not in SHAPE}
        (backbone / "config.json").write_text(json.dumps(config | written))
    modules: list[Any] = [
        Transformer(str(backbone), max_seq_length=128),
        Pooling(WIDTH, pooling_mode=mode),
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for each in head:
            if each == "Normalize":
                modules.append(Normalize())
            else:
                _, width, out, bias = each
                function = torch.nn.Identity()
                modules.append(Dense(width, out, bias=bias, activation_function=function))
    encoder: SentenceTransformer = SentenceTransformer(
        modules=modules, device="cpu", prompts=prompts
    )
    encoder.save(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "saved", request.param)


LONG = "two happy dogs read books in the green city at night " * 2
EQUAL = ["the cat sings in the house", "the house sings in the cat"]
TEXTS = [*EQUAL, LONG, "a"]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_it_gives_the_librarys_vectors_in_any_batch_with_each_prompt(
    model: Path, precision: Precision, tmp_path: Path
) -> None:
    options = ExportOptions(precision=precision, sentences=FEW)
    exported = export_checkpoint(model, tmp_path / "artifact", options)
    assert (exported.manifest.packed, sum(exported.manifest.fused.values()) >= 4) == (True, True)
    served = OnnxEncoder(exported)
    library: SentenceTransformer = SentenceTransformer(str(model), device="cpu")
    first, second = (len(row.input_ids) for row in served.tokenizer.tokenize(EQUAL))
    assert first == second
    for prompt in {"": "", **library.prompts}.values():
        texts = [f"{prompt}{text}" for text in TEXTS]
        expected = library.encode(TEXTS, prompt=prompt, batch_size=1, normalize_embeddings=True)
        together = served.encode(texts)
        alone = np.concatenate([served.encode([text]) for text in texts])
        np.testing.assert_allclose(together, alone, atol=1e-5)
        np.testing.assert_allclose(served.encode(texts[:2]), alone[:2], atol=1e-5)
        worst = (together * expected).sum(1).min()
        assert worst > (0.98 if precision == "int8" else 1 - 1e-5)  # int8 of random weights
