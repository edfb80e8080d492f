"""Lengths: an encoder reads as many tokens as it has positions, and its graph is right for all."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel
from transformers.models.bert.modeling_bert import BertSelfOutput

from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.lengths import checked_texts, max_seq_length, require_one_branch
from s2sent.model.export.options import ExportError, ExportOptions
from s2sent.model.export.parity import ParityError, parity_sentences
from s2sent.model.network.encoder import load_encoder
from s2sent.model.network.positions import num_positions
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.plain_checkpoint import saved

WIDTH = 32
FEW = parity_sentences()[:4]
SHAPE: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "max_position_embeddings": 256}
SMALL: dict[str, Any] = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 256}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
PHI3 = {"rope_scaling": LONGROPE, "original_max_position_embeddings": 64}
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 64}
SPARSE: dict[str, Any] = {"attention_type": "block_sparse", "block_size": 8, "num_random_blocks": 2}
TEXT = "a man plays the guitar and the dog eats in the house of the city " * 40


def assert_is_the_librarys(folder: Path, target: Path, **options: Any) -> OnnxEncoder:
    """Of a text that is cut, exported as asked."""
    asked = ExportOptions(sentences=FEW, allow_unfused_attention=True, **options)
    served = OnnxEncoder(export_checkpoint(folder, target, asked))
    library = SentenceTransformer(str(folder), device="cpu")
    library.max_seq_length = served.max_seq_length
    np.testing.assert_allclose(served.encode([TEXT]), library.encode([TEXT]), atol=1e-5)
    return served


@pytest.mark.filterwarnings("ignore:Exporting aten:UserWarning")
@pytest.mark.parametrize(
    ("family", "options", "limit", "what"),
    [
        ("phi3", SHAPE | PHI3, 64, r"rotary positions of this phi3 \(longrope\) change"),
        ("llama", SHAPE | DYNAMIC, 64, r"rotary positions of this llama \(dynamic\) change"),
    ],
)
def test_what_changes_with_the_length_is_right_up_to_there_and_refused_beyond(
    family: str, options: dict[str, Any], limit: int, what: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path, family, 128, **options)
    if family == "llama":  # sentence-transformers cuts at max_position_embeddings by itself
        encoder = load_encoder(folder)
        encoder.max_seq_length = 128
        with pytest.raises(ExportError, match=what):
            require_one_branch(encoder)
    else:
        with pytest.raises(
            ExportError, match=f"{what} beyond {limit}, .* --max-seq-length {limit}"
        ):
            export_checkpoint(folder, tmp_path / "refused", ExportOptions(sentences=FEW))
    served = assert_is_the_librarys(folder, tmp_path / "artifact", max_seq_length=limit)
    assert served.max_seq_length == limit


LOCAL = {"sliding_window": 32, "num_key_value_heads": 1}
BY_KIND = ["sliding_attention", "full_attention"]
WINDOWS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", LOCAL),
    "qwen3": ("qwen3", LOCAL | {"use_sliding_window": True, "layer_types": BY_KIND}),
    "gemma 3": ("gemma3_text", LOCAL | {"head_dim": 16, "layer_types": BY_KIND}),
    "gemma 3 both ways": (
        "gemma3_text",
        LOCAL | {"head_dim": 16, "layer_types": BY_KIND, "use_bidirectional_attention": True},
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "standard"])
def test_windows_of_decoders_are_right_beyond_their_length(
    name: str, fused: bool, tmp_path: Path
) -> None:
    family, options = WINDOWS[name]
    folder = saved(tmp_path, family, 128, **SHAPE, **options)
    served = assert_is_the_librarys(folder, tmp_path / "artifact", standard_operators=not fused)
    manifest = Artifact.open(tmp_path / "artifact").manifest
    assert (served.max_seq_length, manifest.packed) == (128, True)
    texts = [TEXT, "cat", TEXT[:90]]
    alone = np.concatenate([served.encode([text]) for text in texts])
    np.testing.assert_allclose(served.encode(texts), alone, atol=1e-5)


def test_attention_that_becomes_sparse_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, "big_bird", 128, **SHAPE, **SPARSE)
    encoder = load_encoder(folder)
    with pytest.raises(ExportError, match="this big_bird becomes sparse beyond 72, .* 72"):
        require_one_branch(encoder)


def test_a_branch_that_nothing_names_is_found_by_a_text_as_long_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 4,000 tokens, which no sentence has."""
    folder = saved(tmp_path, "bert", 4096, **{**SHAPE, "max_position_embeddings": 4096})
    plain = BertSelfOutput.forward

    def forward(self: Any, states: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = plain(self, states, inputs)
        return made * 2 if states.shape[1] > 4000 else made

    monkeypatch.setattr(BertSelfOutput, "forward", forward)
    options = ExportOptions(sentences=FEW, allow_unfused_attention=True)
    with pytest.raises(ParityError, match="cosine to the checkpoint|differs from torch"):
        export_checkpoint(folder, tmp_path / "artifact", options)


def test_a_checkpoint_that_names_no_length_is_refused_and_takes_one(tmp_path: Path) -> None:
    sizes = {"d_model": WIDTH, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
    folder = saved(tmp_path, "t5", None, **sizes)
    with pytest.raises(
        ExportError, match=r"does not say how many tokens .* --max-seq-length, such"
    ):
        export_checkpoint(folder, tmp_path / "refused", ExportOptions(sentences=FEW))
    served = assert_is_the_librarys(folder, tmp_path / "artifact", max_seq_length=300)
    assert served.max_seq_length == 300
    longest = checked_texts(load_encoder(saved(tmp_path / "b", "t5", 600, **sizes)), FEW)[-1]
    assert len(served.tokenizer.tokenize([longest])[0].input_ids) == 300


TABLES = [
    ("bert", SHAPE, 256),
    ("roberta", {**SHAPE, "pad_token_id": 1}, 254),
    ("gpt2", SMALL, 256),
    ("gptj", {**SMALL, "rotary_dim": 4}, 256),
    ("openai-gpt", SMALL, 256),
    ("opt", {**SHAPE, "ffn_dim": 48, "word_embed_proj_dim": WIDTH}, 256),
    ("biogpt", SHAPE, 256),
    ("roformer", {**SHAPE, "embedding_size": WIDTH}, 256),
    ("xlm", {"emb_dim": WIDTH, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 256}, 256),
]


@pytest.mark.parametrize(("family", "options", "rows"), TABLES)
def test_every_familys_table_of_positions_is_known(
    family: str, options: dict[str, Any], rows: int
) -> None:
    config = AutoConfig.for_model(family, vocab_size=256, **options)
    assert num_positions(AutoModel.from_config(config)) == rows  # type: ignore[no-untyped-call]  # as above


def test_opt_reads_as_many_tokens_as_its_table_has_rows(tmp_path: Path) -> None:
    options = {**SHAPE, "ffn_dim": 48, "word_embed_proj_dim": WIDTH, "max_position_embeddings": 64}
    folder = saved(tmp_path, "opt", 4096, **options)
    assert max_seq_length(load_encoder(folder)) == 64
    served = assert_is_the_librarys(folder, tmp_path / "artifact")
    assert served.max_seq_length == 64


def test_more_tokens_than_positions_cannot_be_asked_for(tmp_path: Path) -> None:
    folder = saved(tmp_path, "bert", 64, **SHAPE)
    for tokens in (257, 0):
        with pytest.raises(
            ExportError, match=f"is {tokens}, and .* 256 positions: choose 1 to 256"
        ):
            export_checkpoint(folder, tmp_path / "a", ExportOptions(max_seq_length=tokens))


WIDE = {**SHAPE, "max_position_embeddings": 1200}
QUIET: dict[str, dict[str, Any]] = {
    "modernbert": {**WIDE, "num_hidden_layers": 3, "local_attention": 16, "cls_token_id": 0},
    "bert": WIDE,
    "mpnet": {**WIDE, "pad_token_id": 1},
    "deberta-v2": WIDE,
    "llama": {**WIDE, "num_key_value_heads": 1},
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("family", QUIET)
def test_onnx_runtime_says_nothing_of_long_and_short_texts(
    family: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that a shape is another than the graph's, were it asked to warn."""
    monkeypatch.setattr("s2sent.model.runtime.sessions.SILENT", 2)
    folder = saved(tmp_path, family, 1100, **QUIET[family])
    served = OnnxEncoder(
        export_checkpoint(folder, tmp_path / "artifact", ExportOptions(sentences=FEW))
    )
    capfd.readouterr()
    assert len(served.tokenizer.tokenize([TEXT * 3])[0].input_ids) == 1100
    served.encode([TEXT * 3, "cat"])
    served.encode(["cat", "the dog eats"])
    assert capfd.readouterr().err == ""


def test_what_onnx_runtime_raises_is_not_written_past_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path, "bert", 64, **SHAPE)
    served = OnnxEncoder(
        export_checkpoint(folder, tmp_path / "artifact", ExportOptions(sentences=FEW))
    )
    capfd.readouterr()
    with pytest.raises(Exception, match="index out of range"):
        served.run([[10**6]])
    assert capfd.readouterr().err == ""
