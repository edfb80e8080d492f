"""Encoders of other families than BERT: torch's states and vectors, on packed tokens."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from transformers import AutoConfig, AutoModel, T5EncoderModel

from s2sent.model.artifact.manifest import MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.options import ExportOptions, Precision
from s2sent.model.export.packed.families import ENCODERS, pack_backbone
from s2sent.model.export.parity import parity_sentences
from s2sent.model.network.encoder import build_encoder, build_plain_encoder, load_encoder
from s2sent.model.network.pooled import stopped_at
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.tiny import tiny_backbone

# Of transformers' modules of DeBERTa and ModernBERT.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

SHAPE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
V3: dict[str, Any] = {
    "relative_attention": True,
    "position_buckets": 4,
    "max_relative_positions": 16,
}
V3 |= {"pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0}
BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "mpnet": ("mpnet", SHAPE),
    "t5": ("t5", {"d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 3, "num_heads": 4}),
    "t5 v1.1": (
        "t5",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4}
        | {"feed_forward_proj": "gated-gelu", "relative_attention_max_distance": 20},
    ),
    "deberta v3": (
        "deberta-v2",
        SHAPE | V3 | {"share_att_key": True, "norm_rel_ebd": "layer_norm"},
    ),
    "deberta v2": ("deberta-v2", SHAPE | V3 | {"conv_kernel_size": 3, "conv_act": "gelu"}),
    "deberta without distances": ("deberta-v2", SHAPE),
    "modernbert": (
        "modernbert",
        SHAPE | {"global_attn_every_n_layers": 2, "local_attention": 8, "local_rope_theta": 100.0},
    ),
}


def random_backbone(name: str, **more: Any) -> Any:
    kind, own = BACKBONES[name]
    heads = {} if kind == "t5" else {"num_attention_heads": 4, "max_position_embeddings": 64}
    config: Any = AutoConfig.for_model(kind, vocab_size=100, pad_token_id=1, **heads, **own, **more)
    if kind == "modernbert":
        config.tie_last_hidden_states = False  # as `load_encoder` sets it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made: Any = T5EncoderModel(config) if kind == "t5" else AutoModel.from_config(config)  # type: ignore[no-untyped-call]  # transformers is partly typed
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    return made.eval()


@pytest.mark.parametrize("name", BACKBONES)
@torch.no_grad()
def test_packed_tokens_have_the_states_that_transformers_gives(name: str) -> None:
    """Of every block, by attention as one operator or as several, padding or not."""
    ids = torch.randint(8, 100, (4, 40), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(40) < torch.tensor([40, 5, 23, 1])[:, None]).long()
    ids = torch.where(mask > 0, ids, 1)
    outputs = random_backbone(name)(ids, attention_mask=mask, output_hidden_states=True)
    for fused in (True, False):
        packed = pack_backbone(random_backbone(name), fused=fused).eval()
        rows, states, last = packed(ids, mask)
        found = [*states, last]
        expected = [*outputs.hidden_states, outputs.last_hidden_state]
        for block, (state, whole) in enumerate(zip(found, expected, strict=True)):
            difference = (packed.padded(rows, state, block) - whole) * mask[..., None]
            assert difference.abs().max() < 1e-4, block


WIDTH, LAYERS = 32, 3
FEW = parity_sentences()[:12]
LONG = "Two happy Dogs read books in the green city at night, and a cat? " * 4
TEXTS = ["the cat sings", LONG, "a", LONG[:90]]


def a_checkpoint(folder: Path, family: str, config: SelectorConfig | None = None) -> Path:
    backbone = tiny_backbone(folder / "backbone", family, width=WIDTH, num_layers=LAYERS)
    if config:
        encoder = build_encoder(backbone, config, max_seq_length=64)
    else:
        encoder = build_plain_encoder(backbone, max_seq_length=64)
    encoder.save(str(folder / "checkpoint"))
    return folder / "checkpoint"


@pytest.fixture(scope="module", params=ENCODERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each family, without a selector."""
    return a_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


def _has_bias(exported: Artifact) -> bool:
    """Whether the family adds a bias to the scores, which ONNX Runtime's operator takes."""
    return bool(exported.config["model_type"] != "modernbert")


@pytest.mark.parametrize("precision", ["fp32", "weight-int8", "int8"])
def test_every_family_gives_torchs_vectors_at_every_depth_in_any_batch(
    checkpoint: Path, tmp_path: Path, precision: Precision
) -> None:
    """With packed tokens and every attention one operator; the export compares rounded ones."""
    options = ExportOptions(precision=precision, depths=(1, 2), sentences=FEW)
    exported = export_checkpoint(checkpoint, tmp_path / "artifact", options)
    manifest = exported.manifest
    operator = "MultiHeadAttention" if _has_bias(exported) else "Attention"
    assert (manifest.packed, manifest.fused) == (True, {operator: LAYERS})
    assert manifest.inputs == ("input_ids", "attention_mask")
    encoder, served = load_encoder(checkpoint), OnnxEncoder(exported)
    for depth in (None, 1, 2):
        together = served.encode(TEXTS, depth=depth)
        alone = np.concatenate([served.encode([text], depth=depth) for text in TEXTS])
        np.testing.assert_allclose(alone, together, atol=1e-5)
        with stopped_at(encoder, depth) if depth else nullcontext():
            expected = encoder.encode(TEXTS)
        if precision == "fp32":
            np.testing.assert_allclose(together, expected, atol=1e-5)
        assert (together * expected).sum(1).min() > 0.99


def test_positions_of_mpnet_stand_where_a_text_spells_out_padding(tmp_path: Path) -> None:
    """Which has the position of padding, and is not counted."""
    checkpoint = a_checkpoint(tmp_path, "mpnet")
    encoder = load_encoder(checkpoint)
    texts = ["the cat sings", f"the {encoder.tokenizer.pad_token} cat sings", "a"]
    exported = export_checkpoint(checkpoint, tmp_path / "artifact", ExportOptions(sentences=FEW))
    served = OnnxEncoder(exported).encode(texts)
    np.testing.assert_allclose(served, encoder.encode(texts), atol=1e-5)
    assert served[0] @ served[1] < 1 - 1e-3  # the id is one of padding, and seen


@pytest.mark.parametrize("depths", [(), (2,)])
def test_the_last_block_may_be_left_out_of_what_is_fused(
    tmp_path: Path, depths: tuple[int, ...]
) -> None:
    config = SelectorConfig(
        width=WIDTH, reduction=4, num_blocks=1, block_choice="skip_last", weight_norm="none"
    )
    checkpoint = a_checkpoint(tmp_path, "mpnet", config)
    options = ExportOptions(depths=depths, sentences=FEW)
    exported = export_checkpoint(checkpoint, tmp_path / "artifact", options)
    encoder, served = load_encoder(checkpoint), OnnxEncoder(exported)
    np.testing.assert_allclose(served.encode(TEXTS), encoder.encode(TEXTS), atol=1e-5)
    for depth in depths:
        with stopped_at(encoder, depth):
            expected = encoder.encode(TEXTS)
        np.testing.assert_allclose(served.encode(TEXTS, depth=depth), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:token_embeddings is none of all_layer_embeddings")
@pytest.mark.parametrize("family", ["t5", "modernbert"])
def test_a_selector_reads_the_states_that_transformers_gives_it(
    family: str, tmp_path: Path
) -> None:
    """Of T5 those behind its last norm, of ModernBERT those before it."""
    config = SelectorConfig.preset("default", width=WIDTH, reduction=4, num_blocks=2)
    checkpoint = a_checkpoint(tmp_path, family, config)
    options = ExportOptions(depths=(2,), sentences=FEW)
    exported = export_checkpoint(checkpoint, tmp_path / "artifact", options)
    expected = load_encoder(checkpoint).encode(TEXTS)
    np.testing.assert_allclose(OnnxEncoder(exported).encode(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize(("family", "packed"), [("mpnet", False), ("deberta-v2", True)])
def test_standard_operators_are_all_there_are_when_asked_for(
    family: str, packed: bool, tmp_path: Path
) -> None:
    """With padding where transformers' own form can be exported."""
    options = ExportOptions(standard_operators=True, sentences=FEW)
    exported = export_checkpoint(a_checkpoint(tmp_path, family), tmp_path / "artifact", options)
    domains = {node.domain for node in onnx.load(exported.path / MODEL).graph.node}
    assert domains <= {"", "ai.onnx"}
    assert (exported.manifest.packed, exported.manifest.fused) == (packed, {})
