"""Folders of tiny encoders that hold an ONNX graph, as optimum or torch's exporter writes it."""

import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import torch
from optimum.exporters.onnx import main_export
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import (
    Normalize,
    Pooling,
    StaticEmbedding,
)
from tokenizers import Tokenizer

from tests.support.tiny import tiny_backbone

Exporter = Literal["optimum", "torch"]


def given_graph(
    folder: Path,
    family: str = "bert",
    *,
    exporter: Exporter = "optimum",
    pooling: str = "mean",
    normalize: bool = True,
) -> SentenceTransformer:
    """Save a tiny encoder without its weights, with its graph; returns the encoder."""
    with warnings.catch_warnings():  # of tracing, and of what torch imports for ModernBERT
        warnings.simplefilter("ignore")
        return _given_graph(folder, family, exporter, pooling, normalize)


def _given_graph(
    folder: Path, family: str, exporter: Exporter, pooling: str, normalize: bool
) -> SentenceTransformer:
    backbone = tiny_backbone(folder.with_name(f"{folder.name}-backbone"), family, num_layers=2)
    transformer = Transformer(str(backbone), max_seq_length=64)
    width = transformer.get_embedding_dimension()
    modules = [transformer, Pooling(width, pooling_mode=pooling), Normalize()]
    encoder: SentenceTransformer = SentenceTransformer(
        modules=modules if normalize else modules[:2], device="cpu"
    )
    encoder.save(str(folder))
    graph = folder / "onnx/model.onnx"
    graph.parent.mkdir()
    if exporter == "optimum":
        made = folder.with_name(f"{folder.name}-optimum")
        main_export(
            str(backbone),
            made,
            task="feature-extraction",
            library_name="transformers",
            do_validation=False,
        )
        onnx.save(onnx.load(made / "model.onnx"), graph)
    else:
        _by_torch(encoder, graph)
    (folder / "model.safetensors").unlink()
    return encoder


def static_encoder(folder: Path, *, normalize: bool = True) -> SentenceTransformer:
    """Save a tiny table of token vectors, as sentence-transformers does; returns the encoder."""
    backbone = tiny_backbone(folder.with_name(f"{folder.name}-backbone"))
    tokenizer = Tokenizer.from_file(str(backbone / "tokenizer.json"))
    rows = np.random.default_rng(0).standard_normal((tokenizer.get_vocab_size(), 24))
    static = StaticEmbedding(tokenizer, embedding_weights=rows.astype(np.float32))
    modules = [static, Normalize()] if normalize else [static]
    encoder: SentenceTransformer = SentenceTransformer(modules=modules, device="cpu")
    encoder.save(str(folder))
    return encoder


def _by_torch(encoder: SentenceTransformer, path: Path) -> None:
    """By torch.onnx.export in an operator set that is older than the artifact's."""
    names = [name for name in encoder.tokenizer.model_input_names if name != "token_type_ids"]
    rows = torch.ones(2, 8, dtype=torch.int64)
    backbone: Any = encoder[0].get_submodule("auto_model")
    backbone.eval()
    backbone.config.return_dict = False
    torch.onnx.export(
        backbone,
        kwargs=dict.fromkeys(names, rows),
        f=path,
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in [*names, "last_hidden_state"]},
        opset_version=17,
        dynamo=False,
    )
    backbone.config.return_dict = True
