"""Decoders and templated encoders as artifacts: torch's vectors, whatever stands beside a text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from transformers import AutoConfig, AutoModel

from s2sent.model.artifact.manifest import MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.int8.conversion import convert_to_int8
from s2sent.model.export.options import ExportError, ExportOptions, Precision
from s2sent.model.export.packed.decoder import PackedDecoder
from s2sent.model.export.packed.read_early import READ
from s2sent.model.network.encoder import build_prompt_encoder, load_encoder
from s2sent.model.network.pooled import stopped_at
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.runtime.encoder import POOLED_OUTPUT, OnnxEncoder
from tests.support.decoder_checkpoint import LAYERS, SCOPES, a_decoder, a_selector
from tests.support.few import FEW
from tests.support.prompt_encoders import TEMPLATES
from tests.support.tiny import tiny_backbone

TEXTS = ["A man plays the guitar.", "no", 'Two "dogs" run in the street, and a cat eats? ' * 4]
KINDS = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "opt")


def rows_of(encoder: OnnxEncoder) -> list[list[int]]:
    return [row.input_ids for row in encoder.tokenizer.tokenize(TEXTS)]


@pytest.mark.parametrize("prefix", [(), (5, 6, 7)], ids=["whole", "behind a prefix"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_tokens_have_the_states_that_transformers_gives(
    kind: str, prefix: tuple[int, ...]
) -> None:
    """Of every block, by attention as one operator or as several, padding or not."""
    backbone = _random_backbone(kind)
    ids = torch.randint(8, 100, (3, 12))
    ids[:, : len(prefix)] = torch.tensor(prefix)
    mask = (torch.arange(12) < torch.tensor([12, 5, 9])[:, None]).long()
    with torch.no_grad():
        outputs = backbone(ids, attention_mask=mask, output_hidden_states=True)
        expected = [*outputs.hidden_states[:-1], outputs.last_hidden_state]
        for fused in (True, False):
            decoder = PackedDecoder(backbone, prefix, fused=fused)
            rows, states, _ = decoder(ids, mask)
            for block, (state, whole) in enumerate(zip(states, expected, strict=True)):
                difference = (decoder.padded(rows, state, block) - whole) * mask[..., None]
                assert difference.abs().max() < 2e-5


def _random_backbone(kind: str) -> Any:
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    grouped = {"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48}
    other = {"ffn_dim": 48, "word_embed_proj_dim": 32} if kind == "opt" else {}
    own = other if kind in ("gpt2", "opt") else grouped
    config = AutoConfig.for_model(
        kind, vocab_size=100, max_position_embeddings=64, pad_token_id=0, **shape, **own
    )
    torch.manual_seed(0)
    backbone: Any = AutoModel.from_config(config).eval()  # type: ignore[no-untyped-call]  # transformers is partly typed
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    return backbone


@pytest.mark.parametrize("depth", [None, 3])
def test_the_artifact_gives_the_checkpoints_vectors(
    decoder_checkpoint: Path, decoder_artifact: Artifact, depth: int | None
) -> None:
    """Alone and in a batch, at every depth; the template's tokens count, and leave less room."""
    encoder, served = load_encoder(decoder_checkpoint), OnnxEncoder(decoder_artifact)
    if depth is None:
        expected = encoder.encode(TEXTS, normalize_embeddings=True)
    else:
        with stopped_at(encoder, depth):
            expected = encoder.encode(TEXTS, normalize_embeddings=True)
    together = served.encode(TEXTS, depth=depth)
    np.testing.assert_allclose(together, expected, atol=1e-5)
    alone = np.concatenate([served.encode([text], depth=depth) for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=1e-6)
    manifest = decoder_artifact.manifest
    assert manifest.template is not None
    assert (manifest.packed, manifest.pooling, manifest.fused) == (
        True,
        "last_token",
        {"Attention": LAYERS},
    )
    assert manifest.max_input_length == 32
    assert manifest.max_seq_length == 32 + manifest.template.length
    assert served.tokenizer.tokenize(TEXTS)[2].truncated


@pytest.mark.parametrize(
    "config",
    [
        None,
        a_selector(**SCOPES["prefix"]),
        a_selector(spatial_selection="avg", num_blocks=2, input_norm="rms"),
    ],
    ids=["last block", "squeezes the prefix", "mean of blocks"],
)
def test_other_poolings_export(tmp_path: Path, config: SelectorConfig | None) -> None:
    """The export compares each with torch, and refuses one that differs."""
    folder = a_decoder(tmp_path, config, family="gpt2", pooling="rep1")
    exported = export_checkpoint(folder, tmp_path / "artifact", replace(FEW, depths=(3,)))
    assert exported.manifest.parity["max_abs_diff"] < 1e-5
    assert exported.manifest.pooling == "rep1"


def test_a_mean_over_all_tokens_exports(tmp_path: Path) -> None:
    """Those of the prefix too, which the graph does not compute."""
    folder = a_decoder(tmp_path, a_selector(pooling="mean"), pooling="mean")
    exported = export_checkpoint(folder, tmp_path / "artifact", FEW)
    assert exported.manifest.parity["max_abs_diff"] < 1e-5


def test_the_prefix_is_a_constant_of_the_graph(decoder_artifact: Artifact) -> None:
    encoder = OnnxEncoder(decoder_artifact)
    sequences = rows_of(encoder)
    template = decoder_artifact.manifest.template
    assert template is not None
    num_prefix = len(template.prefix)
    others = [[0] * num_prefix + row[num_prefix:] for row in sequences]
    np.testing.assert_array_equal(encoder.run(others), encoder.run(sequences))


def test_the_last_block_works_on_the_tokens_that_are_read(
    decoder_checkpoint: Path, tmp_path: Path
) -> None:
    """Behind its attention; all other blocks work on every token."""
    exported = export_checkpoint(decoder_checkpoint, tmp_path / "artifact", FEW)
    model = onnx.load(exported.path / MODEL)
    products = {
        node.output[0]: node.name
        for node in model.graph.node
        if node.op_type == "MatMul" and "mlp" in node.name
    }
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in products)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    encoder = OnnxEncoder(exported)
    sequences = rows_of(encoder)
    counts = {
        name: result.shape[1]
        for name, result in zip(
            products, session.run([*products], encoder.inputs(sequences)), strict=True
        )
    }
    template = exported.manifest.template
    assert template is not None
    tokens = sum(map(len, sequences)) - len(template.prefix) * len(sequences)
    for name, count in counts.items():
        last = f"layers.{LAYERS - 1}" in products[name]
        assert name.endswith(READ) is last
        assert count == (len(sequences) if last else tokens)
    assert len(counts) == 3 * LAYERS


@pytest.mark.parametrize("precision", ["weight-int8", "int8"])
def test_rounded_decoders_stop_early_and_depend_on_no_batch(
    decoder_checkpoint: Path, decoder_artifact: Artifact, tmp_path: Path, precision: Precision
) -> None:
    options = replace(FEW, precision=precision, depths=(3,))
    rounded = OnnxEncoder(export_checkpoint(decoder_checkpoint, tmp_path / "artifact", options))
    for depth in (None, 3):
        together = rounded.encode(TEXTS, depth=depth)
        alone = np.concatenate([rounded.encode([text], depth=depth) for text in TEXTS])
        np.testing.assert_allclose(alone, together, atol=1e-6)
        cosines = (together * OnnxEncoder(decoder_artifact).encode(TEXTS, depth=depth)).sum(1)
        assert cosines.min() > 0.99
    assert (
        rounded.artifact.path / MODEL
    ).stat().st_size < decoder_artifact.onnx_path.stat().st_size


def test_an_artifact_of_a_decoder_becomes_int8_without_its_checkpoint(
    decoder_artifact: Artifact, tmp_path: Path
) -> None:
    converted = convert_to_int8(decoder_artifact, tmp_path / "int8")
    assert converted.manifest.template == decoder_artifact.manifest.template
    assert converted.manifest.parity["depths"]["3"]["batch_max_abs_diff"] <= 1e-6


def test_standard_operators_are_all_there_are_when_asked_for(
    decoder_checkpoint: Path, tmp_path: Path
) -> None:
    options = replace(FEW, standard_operators=True)
    exported = export_checkpoint(decoder_checkpoint, tmp_path / "artifact", options)
    graph = onnx.load(exported.path / MODEL).graph
    assert {node.domain for node in graph.node} == {""}
    assert exported.manifest.fused == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp16"}, "fp16 is for a GPU. Choose fp32, weight-int8 or int8"),
        ({"precision": "int8", "standard_operators": True}, "Choose weight-int8"),
    ],
)
def test_what_a_decoder_cannot_be_is_a_sentence(
    decoder_checkpoint: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        export_checkpoint(decoder_checkpoint, tmp_path / "artifact", ExportOptions(**options))
    assert not (tmp_path / "artifact").exists()


@pytest.mark.parametrize("pooling", ["mask", "mean"])
def test_prompts_of_a_masked_model_export(tmp_path: Path, pooling: Any) -> None:
    """PromptBERT, whose tokens see both sides: its last block is not cut, its texts are."""
    torch.manual_seed(0)
    encoder = build_prompt_encoder(
        tiny_backbone(tmp_path / "bert"),
        a_selector(),
        TEMPLATES,
        pooling=pooling,
        max_seq_length=24,
    )
    encoder.save(str(tmp_path / "checkpoint"), create_model_card=False)
    options = replace(FEW, depths=(3,))
    exported = export_checkpoint(tmp_path / "checkpoint", tmp_path / "artifact", options)
    served = OnnxEncoder(exported)
    texts = [*TEXTS, "a [MASK] in a text is text"]
    expected = encoder.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(served.encode(texts), expected, atol=1e-5)
    assert exported.manifest.pooling == pooling
    session = ort.InferenceSession(str(exported.onnx_path), providers=["CPUExecutionProvider"])
    assert session.get_outputs()[1].name == POOLED_OUTPUT


def test_a_window_hides_the_beginning_of_its_template_too(
    decoder_checkpoint: Path, tmp_path: Path
) -> None:
    """Also where the template's own prefix is longer than the window."""
    encoder: Any = load_encoder(decoder_checkpoint)
    encoder[0].auto_model.config.sliding_window = window = 3
    assert len(encoder[0].template.prefix) > window
    encoder.save(str(tmp_path / "checkpoint"), create_model_card=False)
    exported = export_checkpoint(tmp_path / "checkpoint", tmp_path / "artifact", FEW)
    expected = load_encoder(tmp_path / "checkpoint").encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(OnnxEncoder(exported).encode(TEXTS), expected, atol=1e-5)
