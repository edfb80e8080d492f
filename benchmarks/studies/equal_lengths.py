"""Two texts of a decoder in one batch against each alone, here and in text-embeddings-inference.

    python -m benchmarks.studies.equal_lengths --tei ROUTER

Prints the least cosine of both, for texts of equal and of different length, by tiny random models.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from benchmarks.systems.ours import our_service
from benchmarks.systems.peers import find_onnxruntime_library
from benchmarks.systems.running import running
from benchmarks.systems.system import NO_CHECK, PORT, SECOND_PORT, System, embed_route
from s2sent.model.export.checkpoint import export_checkpoint

TEXTS = {
    "equal": ["the cat sings in the house", "the house sings in the cat"],
    "different": ["the cat", "the house sings in the cat"],
}
SHAPE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
SHAPE |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
SHAPE |= {"max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LOCAL: dict[str, Any] = {
    "sliding_window": 4,
    "layer_types": [*["sliding_attention"] * 3, "full_attention"],
}
LOCAL |= {"use_bidirectional_attention": True, "query_pre_attn_scalar": 32}
# The settings of the backbone, and the pooling.
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "qwen3": (SHAPE, "lasttoken"),
    "gemma3_text": (SHAPE | LOCAL, "mean_tokens"),
}
POOLINGS = [*(f"{each}_tokens" for each in ("mean", "max", "mean_sqrt_len", "weightedmean"))]
POOLINGS += ["cls_token", "lasttoken"]


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tei", default="text-embeddings-router", help="its program")
    arguments = parser.parse_args()
    print("| random model | system | equal length | different |\n|---|---|---:|---:|")
    for family in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = save_model(Path(folder, "checkpoint"), family)
            export_checkpoint(checkpoint, Path(folder, "artifact"))
            for system in systems(Path(folder), arguments.tei):
                with running(system, Path(folder, "log")) as service:
                    found = [least_cosine(service, texts) for texts in TEXTS.values()]
                print(f"| {family} | {system.label} |", *(f"{each:.4f} |" for each in found))


def systems(folder: Path, tei: str) -> Iterator[System]:
    """Ours on the artifact and the other on the checkpoint."""
    yield our_service(folder / "artifact")
    library = find_onnxruntime_library()  # which it loads before it takes its own kernels
    yield System(
        name="tei",
        label="text-embeddings-inference",
        command=(
            *(tei, "--model-id", str(folder / "checkpoint"), "--hostname", "127.0.0.1"),
            *("--dtype", "float32", "--port", PORT, "--prometheus-port", SECOND_PORT),
        ),
        check=NO_CHECK,
        route=embed_route("/health"),
        environment={"ORT_DYLIB_PATH": str(library)} if library else {},
        install="Give the path of text-embeddings-inference's router with --tei.",
    )


def least_cosine(service: Any, texts: list[str]) -> float:
    """Of the texts together to each alone."""
    alone, together = service.embed(texts), service.embed(texts, together=len(texts))
    return float((alone * together).sum(axis=1).min())


def save_model(folder: Path, family: str) -> Path:
    """A random decoder in the form of older sentence-transformers, which both systems read."""
    settings, pooled = MODELS[family]
    words = ["<pad>", "<s>", "</s>", "<unk>", *sorted({*" ".join(TEXTS["equal"]).split()})]
    tokenizer = Tokenizer(models.WordLevel({w: at for at, w in enumerate(words)}, words[3]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers is partly typed
        tokenizer_object=tokenizer,
        **dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), words, strict=False)),
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=len(words), **settings)
    backbone: Any = AutoModel.from_config(config)  # type: ignore[no-untyped-call]  # as above
    for matrix in (each for each in backbone.parameters() if each.dim() > 1):
        torch.nn.init.normal_(matrix, std=0.2)
    backbone.save_pretrained(folder)
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate({"Transformer": "", "Pooling": "1_Pooling"}.items())
    ]
    flags = {f"pooling_mode_{each}": each == pooled for each in POOLINGS}
    written: dict[str, Any] = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": 64, **flags},
    }
    (folder / "1_Pooling").mkdir()
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))
    return folder


if __name__ == "__main__":
    main()
